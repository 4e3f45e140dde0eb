"""vLLM's load: KV cache, queue, throughput."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import COUNT, PER_SECOND, SHARE, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import BUCKET, quantile, ratio, series, threshold, total, worst
from sidecar.export import metrics


def load() -> Section:
    """KV pressure and throughput."""
    capacity = over_time(
        "KV cache in tokens",
        "Capacity of the KV cache and tokens in use at the last poll, summed over the selected pods.",
        "Speculation uses KV cache for the draft model and the draft tokens. If usage is close to the capacity, "
        "compare with a pod without speculation.",
        [
            Query(f"sum by (model_name) ({series(metrics.KV_CACHE_CAPACITY)})", "capacity {{model_name}}", Style.LIMIT),
            Query(
                f"sum by (model_name) ({series(metrics.KV_CACHE_USAGE)} * {series(metrics.KV_CACHE_CAPACITY)})",
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
                ratio("model_name", metrics.PREFIX_CACHE_HITS, metrics.PREFIX_CACHE_QUERIES),
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
            Query(worst("model_name", series(metrics.KV_CACHE_PEAK)), "peak {{model_name}}"),
            Query(worst("model_name", series(metrics.KV_CACHE_USAGE)), "now {{model_name}}"),
            Query(quantile(0.9, "model_name", metrics.KV_CACHE_SAMPLED), "P90 of polls {{model_name}}"),
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
            Query(f"sum by (model_name) ({series(metrics.REQUESTS_RUNNING)})", "running {{model_name}}"),
            Query(f"sum by (model_name) ({series(metrics.REQUESTS_WAITING)})", "waiting {{model_name}}"),
            Query(
                f"sum by (model_name) ({series(metrics.WAITING_FOR_CAPACITY)})", "waiting for capacity {{model_name}}"
            ),
            Query(total("model_name", metrics.ENGINE_REQUESTS), "first tokens/s {{model_name}}"),
            Query(total("model_name", metrics.PREEMPTIONS), "preemptions/s {{model_name}}"),
        ],
        COUNT,
    )


def _throughput() -> timeseries.Panel:
    counted = (
        ("generated", metrics.GENERATION_TOKENS),
        ("prompt", metrics.PROMPT_TOKENS),
        ("drafted", metrics.ENGINE_DRAFT_TOKENS),
        ("accepted", metrics.ENGINE_ACCEPTED_TOKENS),
        ("verification steps", metrics.ENGINE_DRAFTS),
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
            Query(total(BUCKET, metrics.REQUESTS), "{{temperature}} {{model_name}}"),
            Query(total("outcome", metrics.REQUESTS, 'outcome!="stopped"'), "{{outcome}}", Style.NOTICE),
        ],
        "reqps",
    )
