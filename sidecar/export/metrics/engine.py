"""Metrics of engines: vLLM's own counters, values derived from them, and what the plug-in says."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from sidecar.analysis.engine.latency import Latency, Range, baseline_gap
from sidecar.analysis.evidence import is_ruled
from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.analysis.speed.speedup import Speedup
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.export.declaration import ENGINE, HISTOGRAM_ENGINE, LOAD, MODEL, SINGLE_ENGINE, ByLabel
from sidecar.settings.baselines import PlainCache

_QUANTILES: Final = frozenset({0.5, 0.99})  # each costs one series per engine and phase


def _counted(counter: Counter) -> Callable[[EngineReport], float | None]:
    return lambda engine: engine.counters.get(counter)


def _polled(gauge: Gauge) -> Callable[[EngineReport], float | None]:
    return lambda engine: engine.gauges.get(gauge)


def _shown_quantiles(by_phase: Mapping[str, Mapping[float, float | None]]) -> ByLabel:
    return {
        (phase, str(quantile)): seconds
        for phase, quantiles in by_phase.items()
        for quantile, seconds in quantiles.items()
        if quantile in _QUANTILES
    }


def _gaps(gap: Callable[[Latency], float | None]) -> Callable[[EngineReport], ByLabel]:
    """By phase, except for the queue.

    Half of the requests hardly wait there, so it has no gap to speak of.
    """
    return lambda engine: {
        phase: gap(latency)
        for phase, latency in engine.latencies.items()
        if phase is not Phase.QUEUE
    }


def _gap_bounds(engine: EngineReport) -> ByLabel:
    """Of the time per output token."""
    measured = engine.latencies.get(Phase.TPOT)
    return {} if measured is None else _finite(measured.gap_range)


def _finite(bounds: Range) -> ByLabel:
    return {name: one for name, one in bounds._asdict().items() if math.isfinite(one)}


def _baseline_gap_bounds(model: ModelReport) -> ByLabel:
    """By the buckets that vLLM has now, unless the baseline is exact."""
    edges = (
        engine.latencies[Phase.TPOT].edges
        for engine in model.engines
        if Phase.TPOT in engine.latencies
    )
    bounds = baseline_gap(model.plain_latencies.get(Phase.TPOT), next(edges, ()))
    return {} if bounds is None else _finite(bounds)


def _speculation(engine: EngineReport) -> ByLabel | None:
    speculation = engine.speculation
    if speculation is None:
        return None

    labels = (
        speculation.method or "",
        str(speculation.num_speculative_tokens),
        str(speculation.adaptive_verification).lower(),
        speculation.rejection_sample_method or "",
        speculation.draft_sample_method or "",
        str(is_ruled(speculation)).lower(),
    )
    return {labels: 1}


def _speedup(read: Callable[[Speedup], float]) -> Callable[[EngineReport], float | None]:
    def value(engine: EngineReport) -> float | None:
        if engine.speed is None or engine.speed.speedup is None:
            return None
        return read(engine.speed.speedup)

    return value


def _break_even_acceptance(engine: EngineReport) -> float | None:
    return engine.speed.break_even_acceptance if engine.speed is not None else None


def _plain_cache(
    read: Callable[[PlainCache], float | None],
) -> Callable[[ModelReport], float | None]:
    def value(model: ModelReport) -> float | None:
        return read(model.plain_cache) if model.plain_cache is not None else None

    return value


def _plain_steps(model: ModelReport) -> ByLabel:
    return {(load.running, "baseline"): load.plain_tpot_seconds for load in model.loads}


def _plain_throughput(model: ModelReport) -> float | None:
    steps = model.plain_steps
    return steps.running[-1] / steps.seconds[-1] if steps else None


def _plain_measured(model: ModelReport) -> float | None:
    steps = model.plain_steps
    return steps.measured.timestamp() if steps and steps.measured else None


# vLLM's counters under one name for every version.
_COUNTERS: Final = {
    Counter.DRAFTS: (
        "engine_drafts",
        "Drafts (verification steps of speculating requests) that vLLM counted.",
    ),
    Counter.DRAFT_TOKENS: ("engine_draft_tokens", "Draft tokens that vLLM counted."),
    Counter.ACCEPTED_TOKENS: ("engine_accepted_tokens", "Accepted draft tokens that vLLM counted."),
    Counter.FIRST_TOKENS: (
        "engine_requests",
        "Requests that got their first token, as vLLM counts them.",
    ),
    Counter.GENERATION_TOKENS: ("generation_tokens", "Generated tokens."),
    Counter.PROMPT_TOKENS: ("prompt_tokens", "Prompt tokens processed."),
    Counter.PREEMPTIONS: ("preemptions", "Preemptions of requests because the KV cache was full."),
    Counter.PREFIX_CACHE_QUERIES: (
        "prefix_cache_queries",
        "Tokens looked up in the prefix cache (blocks before vLLM 0.9).",
    ),
    Counter.PREFIX_CACHE_HITS: (
        "prefix_cache_hits",
        "Tokens found in the prefix cache (blocks before vLLM 0.9).",
    ),
}


METRICS: Final = (
    *(
        ENGINE.counter(name, text, value=_counted(counter))
        for counter, (name, text) in _COUNTERS.items()
    ),
    ENGINE.by_position(
        "engine_accepted_tokens_per_position",
        "Accepted draft tokens that vLLM counted, by draft position, starting at 0.",
        value=lambda engine: engine.accepted_per_position,
    ),
    ENGINE.gauge(
        "prefix_cache_hit_ratio",
        "Prefix-cache hits / queries over latency_window.",
        value=lambda engine: engine.cache.hit_ratio,
    ),
    MODEL.gauge(
        "baseline_prefix_cache_hit_ratio",
        "Prefix-cache hits / queries without speculation, from the baseline.",
        value=_plain_cache(lambda cache: cache.hit_ratio),
    ),
    MODEL.gauge(
        "baseline_kv_cache_capacity_tokens",
        "KV-cache capacity of an engine without speculation, from the baseline.",
        value=_plain_cache(lambda cache: cache.capacity_tokens),
    ),
    MODEL.gauge(
        "baseline_preemptions_ratio",
        "Preemptions / requests without speculation, from the baseline.",
        value=_plain_cache(lambda cache: cache.preemptions_ratio),
    ),
    MODEL.gauge(
        "baseline_tokens_per_second",
        (
            "Tokens that an engine generates per second without speculation, at the highest load "
            "of the baseline."
        ),
        value=_plain_throughput,
    ),
    # Acceptance and latency derived from these counters and vLLM's histograms.
    HISTOGRAM_ENGINE.histogram(
        "engine_window_acceptance_ratio",
        (
            "Accepted / draft tokens between two polls; one observation per poll with drafts. With"
            " more than four engines, only of the first."
        ),
        value=lambda engine: (
            engine.window_acceptances if Counter.DRAFT_TOKENS in engine.counters else None
        ),
    ),
    SINGLE_ENGINE.gauge(
        "engine_latency_seconds",
        (
            "Quantiles 0.5 and 0.99 over latency_window: of the requests' own times where the "
            "plug-in tells nearly all that finished (ttft, tpot and e2e), else interpolated in "
            "the buckets of vLLM's own histograms."
        ),
        ["phase", "quantile"],
        value=lambda engine: _shown_quantiles(
            {phase: latency.quantiles for phase, latency in engine.latencies.items()}
        ),
    ),
    MODEL.gauge(
        "latency_baseline_seconds",
        "The same quantiles in the configured baseline.",
        ["phase", "quantile"],
        value=lambda model: _shown_quantiles(
            {phase: plain.quantiles for phase, plain in model.plain_latencies.items()}
        ),
    ),
    SINGLE_ENGINE.gauge(
        "engine_latency_gap_seconds",
        (
            "P99 - P50 of the same, not of the queue; absent where only buckets tell and P99 is in"
            " the first."
        ),
        ["phase"],
        value=_gaps(lambda latency: latency.gap_seconds),
    ),
    SINGLE_ENGINE.gauge(
        "engine_latency_gap_ratio",
        (
            "P99 / P50 of the same, not of the queue; absent where only buckets tell and P99 is in"
            " the first."
        ),
        ["phase"],
        value=_gaps(lambda latency: latency.gap_ratio),
    ),
    SINGLE_ENGINE.gauge(
        "engine_tpot_gap_bound_seconds",
        (
            "The least and the most that P99 - P50 of the time per output token can be: by "
            "the requests' own times with those that are missing, the same without any; by vLLM's "
            "buckets, as far as these tell, so at least 0 within one bucket."
        ),
        ["bound"],
        value=_gap_bounds,
    ),
    MODEL.gauge(
        "tpot_baseline_gap_bound_seconds",
        "The same of the configured baseline, by the buckets that vLLM has now.",
        ["bound"],
        value=_baseline_gap_bounds,
    ),
    SINGLE_ENGINE.gauge(
        "engine_limitation",
        "1 for each limitation of what this engine's page exports.",
        ["limitation"],
        value=lambda engine: dict.fromkeys(sorted(engine.limitations), 1),
    ),
    # KV cache and load.
    ENGINE.gauge(
        "kv_cache_usage_ratio",
        "KV-cache usage at the last poll.",
        value=_polled(Gauge.KV_CACHE_USAGE),
    ),
    ENGINE.gauge(
        "kv_cache_usage_peak_ratio",
        "Highest KV-cache usage of all polls within kv_peak_window.",
        value=lambda engine: engine.kv_cache_peak,
    ),
    HISTOGRAM_ENGINE.histogram(
        "kv_cache_sampled_usage_ratio",
        (
            "KV-cache usage; one observation per poll. With more than four engines, only of the"
            " first."
        ),
        value=lambda engine: engine.kv_cache_usages if engine.kv_cache_usages.count else None,
    ),
    ENGINE.gauge(
        "kv_cache_capacity_tokens",
        "Capacity of the KV cache in tokens.",
        value=lambda engine: engine.kv_cache_capacity_tokens,
    ),
    ENGINE.gauge(
        "requests_running",
        "Running requests at the last poll.",
        value=_polled(Gauge.REQUESTS_RUNNING),
    ),
    ENGINE.gauge(
        "requests_waiting",
        "Waiting requests at the last poll.",
        value=_polled(Gauge.REQUESTS_WAITING),
    ),
    ENGINE.gauge(
        "requests_waiting_for_capacity",
        "Requests waiting for capacity at the last poll (newer vLLM).",
        value=_polled(Gauge.WAITING_FOR_CAPACITY),
    ),
    # What the plug-in says.
    ENGINE.gauge(
        "request_coverage_ratio",
        (
            "Draft tokens that the plug-in reported / vLLM's own counter, both since vLLM began to "
            "count; generated tokens where nothing was drafted. Lower by what an engine core "
            "could not send before it ended. 0 if a number of the plug-in fell, or if several are "
            "connected as the engine."
        ),
        value=lambda engine: engine.coverage,
    ),
    ENGINE.gauge(
        "plugin_report_age_seconds",
        (
            "How old the plug-in's newest whole report was at the last poll. It reports once a "
            "second while requests run, and not while none does."
        ),
        value=lambda engine: engine.report_age,
    ),
    ENGINE.gauge(
        "speculation_info",
        (
            "1, labelled with the engine's speculative configuration, as read by the plug-in that"
            " counts, and whether the rule of thumb on the acceptance rate applies to it."
        ),
        [
            "method",
            "num_speculative_tokens",
            "adaptive_verification",
            "rejection_sample_method",
            "draft_sample_method",
            "rule_of_thumb",
        ],
        value=_speculation,
    ),
    # Decoding by load, and plain decoding. ``running`` is the number of requests in a step.
    LOAD.counter(
        "decode_seconds",
        "Time between a request's engine steps, summed over requests.",
        value=lambda load: load.seconds,
    ),
    LOAD.counter(
        "decode_steps",
        "Engine steps, counted once for each request that decoded in them.",
        value=lambda load: load.steps,
    ),
    LOAD.counter(
        "decode_tokens",
        "Tokens generated in these steps, so without each request's first token.",
        value=lambda load: load.tokens,
    ),
    MODEL.gauge(
        "plain_step_seconds",
        (
            "Time of an engine step without speculation at this load, by source; absent where it "
            "is unknown."
        ),
        ["running", "reference"],
        value=_plain_steps,
    ),
    MODEL.gauge(
        "baseline_timestamp_seconds",
        "When the plain step times were measured.",
        value=_plain_measured,
    ),
    ENGINE.gauge(
        "engine_speedup_ratio",
        (
            "Plain time per token / actual of all requests over latency_window or, as long as that"
            " is uncertain, up to an hour. Absent without a reference."
        ),
        value=_speedup(lambda speedup: speedup.ratio),
    ),
    ENGINE.gauge(
        "engine_speedup_standard_error_ratio",
        (
            "Standard error of specdec_engine_speedup_ratio, as the ratio of the same traffic on"
            " this machine in the long run."
        ),
        value=_speedup(lambda speedup: speedup.error),
    ),
    MODEL.gauge(
        "context_speedup_ratio",
        (
            "Plain time per token / actual over the last hour, by the mean context of the requests"
            " that decode, in tokens. Absent without a reference."
        ),
        ["context"],
        value=lambda model: {label: found.ratio for label, found in model.contexts.items()},
    ),
    ENGINE.gauge(
        "context_tokens",
        "Tokens in the KV cache of a decoding request, on average.",
        value=lambda engine: engine.context_tokens,
    ),
    ENGINE.gauge(
        "break_even_acceptance_ratio",
        (
            "Acceptance rate at which this load is as fast as plain decoding; above 1: no rate "
            "is. Absent without a reference."
        ),
        value=_break_even_acceptance,
    ),
)
