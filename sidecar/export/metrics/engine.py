"""Metrics of engines: vLLM's own counters, values derived from them, and what the plug-in says."""

from collections.abc import Callable, Mapping
from typing import Final

from sidecar.analysis.engine.engine_state import Latency
from sidecar.analysis.evidence import is_ruled
from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.export.declaration import ENGINE, LOAD, MODEL, SINGLE_ENGINE, Values

_QUANTILES: Final = frozenset({0.5, 0.99})  # each costs one series per engine and phase


def _counted(counter: Counter) -> Callable[[EngineReport], Values]:
    return lambda engine: engine.counters.get(counter)


def _polled(gauge: Gauge) -> Callable[[EngineReport], Values]:
    return lambda engine: engine.gauges.get(gauge)


def _shown_quantiles(by_phase: Mapping[str, Mapping[float, float | None]]) -> Values:
    return {
        (phase, str(quantile)): seconds
        for phase, quantiles in by_phase.items()
        for quantile, seconds in quantiles.items()
        if quantile in _QUANTILES
    }


def _gaps(gap: Callable[[Latency], float | None]) -> Callable[[EngineReport], Values]:
    """By phase, except for the queue.

    Half of the requests hardly wait there, so it has no gap to speak of.
    """
    return lambda engine: {
        phase: gap(latency)
        for phase, latency in engine.latencies.items()
        if phase is not Phase.QUEUE
    }


def _speculation(engine: EngineReport) -> Values:
    if (found := engine.speculation) is None:
        return None
    adaptive, ruled = str(found.adaptive_verification).lower(), str(is_ruled(found)).lower()
    samplers = (found.rejection_sample_method or "", found.draft_sample_method or "")
    return {(found.method or "", str(found.num_speculative_tokens), adaptive, *samplers, ruled): 1}


def _plain_steps(model: ModelReport) -> Values:
    return {(load.running, "baseline"): load.plain_seconds for load in model.loads}


def _plain_throughput(model: ModelReport) -> Values:
    steps = model.plain_steps
    return steps.running[-1] / steps.seconds[-1] if steps else None


def _plain_measured(model: ModelReport) -> Values:
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


METRICS: Final = {
    **{
        ENGINE.counter(name, _counted(counter)): text for counter, (name, text) in _COUNTERS.items()
    },
    ENGINE.by_position(
        "engine_accepted_tokens_per_position", "accepted_per_position"
    ): "Accepted draft tokens that vLLM counted, by draft position, starting at 0.",
    ENGINE.gauge(
        "prefix_cache_hit_ratio", "cache.hit_ratio"
    ): "Prefix-cache hits / queries over latency_window.",
    MODEL.gauge(
        "baseline_prefix_cache_hit_ratio", "plain_cache.hit_ratio"
    ): "Prefix-cache hits / queries without speculation, from the baseline.",
    MODEL.gauge(
        "baseline_kv_cache_capacity_tokens", "plain_cache.capacity_tokens"
    ): "KV-cache capacity of an engine without speculation, from the baseline.",
    MODEL.gauge(
        "baseline_preemptions_ratio", "plain_cache.preemptions_ratio"
    ): "Preemptions / requests without speculation, from the baseline.",
    MODEL.gauge("baseline_tokens_per_second", _plain_throughput): (
        "Tokens that an engine generates per second without speculation, at the highest load of the"
        " baseline."
    ),
    # Acceptance and latency derived from these counters and vLLM's histograms.
    SINGLE_ENGINE.histogram(
        "engine_window_acceptance_ratio",
        lambda engine: (
            engine.window_acceptances if Counter.DRAFT_TOKENS in engine.counters else None
        ),
    ): "Accepted / draft tokens between two polls; one observation per poll with drafts.",
    SINGLE_ENGINE.gauge(
        "engine_latency_seconds",
        lambda engine: _shown_quantiles(
            {phase: latency.quantiles for phase, latency in engine.latencies.items()}
        ),
        *("phase", "quantile"),
    ): (
        "Quantiles 0.5 and 0.99 from vLLM's own histograms over latency_window; interpolated in the"
        " first bucket."
    ),
    MODEL.gauge(
        "latency_baseline_seconds",
        lambda model: _shown_quantiles(model.plain_latencies),
        "phase",
        "quantile",
    ): "The same quantiles in the configured baseline.",
    SINGLE_ENGINE.gauge(
        "engine_latency_gap_seconds", _gaps(lambda latency: latency.gap_seconds), "phase"
    ): (
        "P99 - P50 over latency_window, not of the queue; absent where P99 is in vLLM's first"
        " bucket."
    ),
    SINGLE_ENGINE.gauge(
        "engine_latency_gap_ratio", _gaps(lambda latency: latency.gap_ratio), "phase"
    ): (
        "P99 / P50 over latency_window, not of the queue; absent where P99 is in vLLM's first"
        " bucket."
    ),
    SINGLE_ENGINE.gauge(
        "engine_limitation",
        lambda engine: dict.fromkeys(sorted(engine.limitations), 1),
        "limitation",
    ): "1 for each limitation of what this engine's page exports.",
    # KV cache and load.
    ENGINE.gauge(
        "kv_cache_usage_ratio", _polled(Gauge.KV_CACHE_USAGE)
    ): "KV-cache usage at the last poll.",
    ENGINE.gauge(
        "kv_cache_usage_peak_ratio", "kv_cache_peak"
    ): "Highest KV-cache usage of all polls within kv_peak_window.",
    SINGLE_ENGINE.histogram(
        "kv_cache_sampled_usage_ratio",
        lambda engine: engine.kv_cache_usages if engine.kv_cache_usages.count else None,
    ): "KV-cache usage; one observation per poll.",
    ENGINE.gauge(
        "kv_cache_capacity_tokens", "kv_cache_capacity_tokens"
    ): "Capacity of the KV cache in tokens.",
    ENGINE.gauge(
        "requests_running", _polled(Gauge.REQUESTS_RUNNING)
    ): "Running requests at the last poll.",
    ENGINE.gauge(
        "requests_waiting", _polled(Gauge.REQUESTS_WAITING)
    ): "Waiting requests at the last poll.",
    ENGINE.gauge(
        "requests_waiting_for_capacity", _polled(Gauge.WAITING_FOR_CAPACITY)
    ): "Requests waiting for capacity at the last poll (newer vLLM).",
    # What the plug-in says.
    ENGINE.gauge("request_coverage_ratio", "coverage"): (
        "Draft tokens that the plug-in reported / vLLM's own counter, both since the engine"
        " started. 0 if the plug-in contradicts itself, or if several claim to be the engine."
    ),
    ENGINE.gauge(
        "speculation_info",
        _speculation,
        *("method", "num_speculative_tokens", "adaptive_verification"),
        *("rejection_sample_method", "draft_sample_method", "rule_of_thumb"),
    ): (
        "1, labelled with the engine's speculative configuration as the plug-in reads it, and"
        " whether the rule of thumb on the acceptance rate applies to it."
    ),
    # Decoding by load, and plain decoding. ``running`` is the number of requests in a step.
    LOAD.counter(
        "decode_seconds", "seconds"
    ): "Time between a request's engine steps, summed over requests.",
    LOAD.counter(
        "decode_steps", "steps"
    ): "Engine steps, counted once for each request that decoded in them.",
    LOAD.counter(
        "decode_tokens", "tokens"
    ): "Tokens generated in these steps, so without each request's first token.",
    MODEL.gauge("plain_step_seconds", _plain_steps, "running", "reference"): (
        "Time of an engine step without speculation at this load, by source; absent where it is"
        " unknown."
    ),
    MODEL.gauge(
        "baseline_timestamp_seconds", _plain_measured
    ): "When the plain step times were measured.",
    ENGINE.gauge("engine_speedup_ratio", "speed.speedup.ratio"): (
        "Plain time per token / actual of all requests over latency_window. Absent without a"
        " reference."
    ),
    ENGINE.gauge(
        "engine_speedup_standard_error_ratio", "speed.speedup.error"
    ): "Standard error of specdec_engine_speedup_ratio.",
    ENGINE.gauge("break_even_acceptance_ratio", "speed.break_even_acceptance"): (
        "Acceptance rate at which this load is as fast as plain decoding; above 1: no rate is. "
        "Absent without a reference."
    ),
}
