"""The alerts' conditions over the sidecar's own state: what ``expr`` asks of Prometheus, for the direct push."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from sidecar.alerting.look import Finding, Look
from sidecar.analysis.engine_state import EngineReport
from sidecar.analysis.latency import Latency, gap_growth
from sidecar.analysis.limitation import Limitation
from sidecar.analysis.verdict import Verdict
from sidecar.engine.names import Gauge, Phase


def acceptance_low(look: Look) -> Iterator[Finding]:
    """A model's whole acceptance is below the threshold."""
    limit = look.thresholds.acceptance_net_negative
    for model in look.report.judgements:
        rate = model.whole.evidence.acceptance
        if model.whole.by_acceptance is Verdict.NET_NEGATIVE and rate is not None:
            yield Finding({"model_name": model.model_name}, rate, {"threshold": limit})


def break_even(look: Look) -> Iterator[Finding]:
    """A model's whole acceptance lies between loss and gain."""
    limit = look.thresholds.acceptance_break_even
    for model in look.report.judgements:
        rate = model.whole.evidence.acceptance
        if model.whole.by_acceptance is Verdict.BREAK_EVEN and rate is not None:
            yield Finding({"model_name": model.model_name}, rate, {"threshold": limit})


def acceptance_low_at_temperature(look: Look) -> Iterator[Finding]:
    """One temperature's acceptance is below the threshold, and it has enough of the traffic to matter."""
    limit = look.thresholds.acceptance_net_negative
    for model in look.report.judgements:
        for temperature, judgement in model.temperatures.items():
            found = judgement.evidence
            if judgement.by_acceptance is Verdict.NET_NEGATIVE and found.acceptance is not None:
                whole = model.whole.evidence.acceptance
                readings = {"threshold": limit, "share": found.share, "past": None, "whole": whole}
                yield Finding({"model_name": model.model_name, "temperature": temperature}, found.acceptance, readings)


def latency_gap_wide(look: Look) -> Iterator[Finding]:
    """The gap P99 - P50 has outgrown the configured baseline's; without a baseline there is nothing to tell by."""
    limit = look.thresholds.latency_gap_growth
    drafting = _drafting(look)
    for model, engines in _by_model(look.report.engines).items():
        found = [engine.latencies[Phase.TPOT] for engine in engines if Phase.TPOT in engine.latencies]
        if not found or model not in drafting:
            continue
        widest = max(found, key=_gap_seconds)
        growth = gap_growth(widest, look.baselines.get(model, {}).get(Phase.TPOT, {}))
        if growth is not None and growth > limit:
            readings = {"threshold": limit, "p50": widest.quantiles[0.5], "p99": widest.quantiles[0.99]}
            yield Finding({"model_name": model}, growth, readings)


def kv_cache_pressure(look: Look) -> Iterator[Finding]:
    """The KV cache is nearly full while requests wait."""
    limit = look.thresholds.kv_cache_usage
    for model, engines in _by_model(look.report.engines).items():
        peaks = [engine.kv_cache_peak for engine in engines if engine.kv_cache_peak is not None]
        waiting = sum(engine.gauges.get(Gauge.REQUESTS_WAITING, 0) for engine in engines)
        if peaks and max(peaks) > limit and waiting > 0:
            readings = {"threshold": limit, "waiting": waiting, "preemptions": None}
            yield Finding({"model_name": model}, max(peaks), readings)


def vllm_down(look: Look) -> Iterator[Finding]:
    """The page can't be had, and once could."""
    if not look.report.up and look.report.last_scrape is not None:
        yield Finding({}, 0)


def vllm_never_up(look: Look) -> Iterator[Finding]:
    """The page could never be had."""
    if not look.report.up and look.report.last_scrape is None:
        yield Finding({}, 0)


def coverage_low(look: Look) -> Iterator[Finding]:
    """Too small a part of the draft tokens is attributed to requests."""
    limit = look.thresholds.coverage
    incomplete = {model.model_name for model in look.report.judgements if not model.is_covered} & _drafting(look)
    for model in look.report.requests.models if look.report.requests else ():
        if model.model_name in incomplete and model.coverage is not None:
            readings = {"threshold": limit, "residual": model.residual}
            yield Finding({"model_name": model.model_name}, model.coverage, readings)


def not_judged(look: Look) -> Iterator[Finding]:
    """The V0 engine, whose counters are useless."""
    models = {key.model_name for key, found in look.report.limitations.items() if Limitation.V0_COUNTERS in found}
    for model in sorted(models):
        yield Finding({"model_name": model}, 1)


def _drafting(look: Look) -> set[str]:
    """The models that draft enough to be judged."""
    return {model.model_name for model in look.report.judgements if model.whole.has_enough_data}


def _by_model(engines: Iterable[EngineReport]) -> dict[str, list[EngineReport]]:
    found: dict[str, list[EngineReport]] = defaultdict(list)
    for engine in engines:
        found[engine.key.model_name].append(engine)
    return found


def _gap_seconds(latency: Latency) -> float:
    return latency.gap_seconds
