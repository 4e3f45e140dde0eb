"""vLLM's load: KV cache, queue, throughput."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import (
    COUNT,
    SECONDS,
    SHARE,
    SMOOTH,
    TEMPERATURE,
    TOKENS_PER_SECOND,
    Query,
    over_time,
)
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import series, threshold, total, worst


def load() -> Section:
    """KV pressure and throughput."""
    queueing = over_time(
        "Time in the queue: P50 and P99, worst pod",
        "How long requests wait before vLLM schedules them, over the sliding window.",
        "If this rises and the time between tokens does not, the cause is load or long prompts, not"
        " speculation.",
        [
            Query(
                worst(
                    "", series("engine_latency_seconds", 'phase="queue"', f'quantile="{quantile}"')
                ),
                name,
            )
            for name, quantile in (("P50", "0.5"), ("P99", "0.99"))
        ],
        SECONDS,
    )

    return Section(
        "Is it the load? KV cache and queue",
        [
            beside(8, (_kv(), 8), (_queue(), 8), (queueing, 8)),
            beside(8, (_throughput(), 12), (_requests(), 12)),
        ],
        collapsed=True,
    )


def _kv() -> timeseries.Panel:
    used = f"sum({series('kv_cache_usage_ratio')} * {series('kv_cache_capacity_tokens')})"

    return over_time(
        "KV cache in use",
        "Share in use on the fullest pod: now, and the peak of the last minute, which includes what"
        " happened between two scrapes of Prometheus; and of all selected pods' capacity in tokens"
        " together.",
        "Above the threshold vLLM preempts requests and computes them again. Lower --max-num-seqs,"
        " scale out, or turn speculation off at peak hours: draft tokens need KV cache too.",
        [
            Query(worst("", series("kv_cache_usage_peak_ratio")), "peak, fullest pod"),
            Query(worst("", series("kv_cache_usage_ratio")), "now, fullest pod"),
            Query(f"{used} / (sum({series('kv_cache_capacity_tokens')}) > 0)", "now, all pods"),
            Query(threshold("kv_cache_usage"), "under pressure above", Style.LIMIT),
        ],
        SHARE,
        high=1,
    )


def _queue() -> timeseries.Panel:
    return over_time(
        "Requests running and waiting, preemptions",
        "Requests running and waiting at the last poll; first tokens and preemptions per second.",
        "A preempted request is computed again from the start, so any steady rate is too much. If"
        " requests wait while the KV cache has room, --max-num-seqs is the limit.",
        [
            Query(f"sum({series('requests_running')})", "running"),
            Query(f"sum({series('requests_waiting')})", "waiting"),
            Query(f"sum({series('requests_waiting_for_capacity')})", "waiting for capacity"),
            Query(total("", "engine_requests_total"), "first tokens/s"),
            Query(total("", "preemptions_total"), "preemptions/s"),
        ],
        COUNT,
    )


def _throughput() -> timeseries.Panel:
    counted = (
        ("generated", "generation_tokens_total"),
        ("prompt", "prompt_tokens_total"),
        ("drafted", "engine_draft_tokens_total"),
        ("accepted", "engine_accepted_tokens_total"),
    )

    return over_time(
        "Tokens per second",
        "Generated, prompt, draft and accepted tokens. Draft minus accepted tokens is wasted work.",
        "If generated falls while drafted stays, more work is wasted. If drafted is 0 while tokens"
        " are generated, vLLM has stopped speculating: check its log.",
        [Query(total("", metric), what) for what, metric in counted],
        TOKENS_PER_SECOND,
    )


def _requests() -> timeseries.Panel:
    return over_time(
        "Finished requests, by temperature",
        "Finished requests per second, as counted by vLLM's scheduler; those that did not end"
        " normally, by outcome.",
        "A change in the mix explains a change in the average. aborted: the client disconnected, or"
        " the text reached a stop string (the engine cannot tell which). error: check vLLM's log.",
        [
            Query(total("temperature", "requests_total"), TEMPERATURE),
            Query(
                total("outcome", "requests_total", 'outcome!~"stopped|length"'),
                "{{outcome}}",
                Style.NOTICE,
            ),
        ],
        "reqps",
    ).interval(SMOOTH)
