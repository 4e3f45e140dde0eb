"""vLLM's load: KV cache, queue, throughput."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import COUNT, PER_SECOND, SHARE, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import BUCKET, quantile, ratio, series, threshold, total, worst


def load() -> Section:
    """KV pressure and throughput."""
    capacity = over_time(
        "KV cache in tokens",
        "Capacity of the KV cache and tokens in use at the last poll, summed over the selected pods.",
        "Speculation uses KV cache for the draft model and the draft tokens. If usage is close to the capacity, "
        "compare with a pod without speculation.",
        [
            Query(
                f"sum by (model_name) ({series('kv_cache_capacity_tokens')})",
                "capacity {{model_name}}",
                Style.LIMIT,
            ),
            Query(
                f"sum by (model_name) ({series('kv_cache_usage_ratio')} * {series('kv_cache_capacity_tokens')})",
                "in use {{model_name}}",
            ),
        ],
        COUNT,
    )
    hits = over_time(
        "Prefix cache hit rate",
        "Share of the prompt tokens looked up that were found in the prefix cache.",
        "If it drops, prefills take longer, and the time to first token rises. Speculation does not affect it.",
        [
            Query(
                ratio("model_name", "prefix_cache_hits_total", "prefix_cache_queries_total"),
                "{{model_name}}",
            )
        ],
        SHARE,
        high=1,
    )
    return Section(
        "KV cache and load",
        [
            beside(8, (_kv(), 8), (capacity, 8), (_queue(), 8)),
            beside(8, (_throughput(), 8), (_requests(), 8), (hits, 8)),
        ],
    )


def _kv() -> timeseries.Panel:
    return over_time(
        "KV cache in use",
        "Share in use on the fullest pod: now, the peak of the last minute, and P90 over all polls. The peak includes "
        "what happened between two scrapes of Prometheus.",
        "Above the threshold vLLM preempts requests and computes them again. Lower --max-num-seqs, scale out, or turn "
        "speculation off at peak hours: draft tokens need KV cache too.",
        [
            Query(worst("model_name", series("kv_cache_usage_peak_ratio")), "peak {{model_name}}"),
            Query(worst("model_name", series("kv_cache_usage_ratio")), "now {{model_name}}"),
            Query(quantile(0.9, "model_name", "kv_cache_sampled_usage_ratio"), "P90 of polls {{model_name}}"),
            Query(threshold("kv_cache_usage"), "under pressure above", Style.LIMIT),
        ],
        SHARE,
        high=1,
    )


def _queue() -> timeseries.Panel:
    return over_time(
        "Requests running and waiting, preemptions",
        "Requests running and waiting at the last poll; first tokens and preemptions per second.",
        "A preempted request is computed again from the start, so any steady rate is too much. If requests wait while "
        "the KV cache has room, --max-num-seqs is the limit.",
        [
            Query(f"sum by (model_name) ({series('requests_running')})", "running {{model_name}}"),
            Query(f"sum by (model_name) ({series('requests_waiting')})", "waiting {{model_name}}"),
            Query(
                f"sum by (model_name) ({series('requests_waiting_for_capacity')})",
                "waiting for capacity {{model_name}}",
            ),
            Query(total("model_name", "engine_requests_total"), "first tokens/s {{model_name}}"),
            Query(total("model_name", "preemptions_total"), "preemptions/s {{model_name}}"),
        ],
        COUNT,
    )


def _throughput() -> timeseries.Panel:
    counted = (
        ("generated", "generation_tokens_total"),
        ("prompt", "prompt_tokens_total"),
        ("drafted", "engine_draft_tokens_total"),
        ("accepted", "engine_accepted_tokens_total"),
        ("verification steps", "engine_drafts_total"),
    )
    return over_time(
        "Tokens per second",
        "Generated, prompt, draft and accepted tokens. Draft minus accepted tokens is wasted work.",
        "If generated falls while drafted stays, more work is wasted. If drafted is 0 while tokens are generated, vLLM "
        "has stopped speculating: check its log.",
        [Query(total("model_name", metric), f"{what} {{{{model_name}}}}") for what, metric in counted],
        PER_SECOND,
    )


def _requests() -> timeseries.Panel:
    return over_time(
        "Finished requests, by temperature",
        "Finished requests per second, as counted by vLLM's scheduler; those that did not end normally, by outcome.",
        "A change in the mix explains a change in the average. aborted: the client disconnected, or the text reached a "
        "stop string (the engine cannot tell which). error: check vLLM's log.",
        [
            Query(total(BUCKET, "requests_total"), "{{temperature}} {{model_name}}"),
            Query(total("outcome", "requests_total", 'outcome!="stopped"'), "{{outcome}}", Style.NOTICE),
        ],
        "reqps",
    )
