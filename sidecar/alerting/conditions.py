"""The alerts' conditions over the sidecar's own state: what ``expr`` asks of Prometheus, for the direct push."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from sidecar.alerting.look import Finding, Look
from sidecar.analysis.engine_state import EngineReport
from sidecar.analysis.latency import Latency, gap_growth
from sidecar.analysis.limitation import Limitation
from sidecar.analysis.request_stats import RecentWork
from sidecar.analysis.verdict import Verdict
from sidecar.engine.names import Gauge, Phase


def acceptance_low(look: Look) -> Iterator[Finding]:
    """A model's whole acceptance is below the threshold."""
    limit = look.thresholds.acceptance_net_negative
    for model, rate in _acceptances(look):
        if rate < limit:
            yield Finding({"model_name": model}, rate, {"threshold": limit})


def break_even(look: Look) -> Iterator[Finding]:
    """A model's whole acceptance lies between loss and gain."""
    low, high = look.thresholds.acceptance_net_negative, look.thresholds.acceptance_break_even
    for model, rate in _acceptances(look):
        if low <= rate < high:
            yield Finding({"model_name": model}, rate, {"threshold": high})


def acceptance_low_at_temperature(look: Look) -> Iterator[Finding]:
    """One temperature's acceptance is below the threshold, and it has enough of the traffic to matter."""
    limit = look.thresholds.acceptance_net_negative
    whole = dict(_acceptances(look))
    for model, temperature, work, share in _temperatures(look):
        if work.acceptance is not None and work.acceptance < limit:
            readings = {"threshold": limit, "share": share, "past": None, "whole": whole.get(model)}
            yield Finding({"model_name": model, "temperature": temperature}, work.acceptance, readings)


def latency_gap_wide(look: Look) -> Iterator[Finding]:
    """The gap P99 - P50 has outgrown the configured baseline's; without a baseline there is nothing to tell by."""
    limit = look.thresholds.latency_gap_growth
    drafting = dict(_acceptances(look))
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
    drafting = dict(_acceptances(look))
    for model in look.report.requests.models if look.report.requests and look.report.up else ():
        if model.model_name in drafting and model.coverage is not None and model.coverage < limit:
            readings = {"threshold": limit, "residual": model.residual}
            yield Finding({"model_name": model.model_name}, model.coverage, readings)


def not_judged(look: Look) -> Iterator[Finding]:
    """The V0 engine, whose counters are useless."""
    models = {key.model_name for key, found in look.report.limitations.items() if Limitation.V0_COUNTERS in found}
    for model in sorted(models):
        yield Finding({"model_name": model}, 1)


def _acceptances(look: Look) -> Iterator[tuple[str, float]]:
    """Each model's acceptance over its engines, where enough was drafted to judge it."""
    for model, engines in _by_model(look.report.engines).items():
        known = [engine.acceptance for engine in engines if engine.acceptance is not None]
        draft_tokens = sum(acceptance.draft_tokens for acceptance in known)
        drafts = sum(acceptance.drafts for acceptance in known)
        if draft_tokens > 0 and drafts >= look.thresholds.min_drafts_per_second * look.window:
            yield model, sum(acceptance.accepted_tokens for acceptance in known) / draft_tokens


def _temperatures(look: Look) -> Iterator[tuple[str, str, RecentWork, float]]:
    """The temperatures that have enough traffic to be judged: model, temperature, work, share of the draft tokens."""
    marks = look.thresholds
    for model in look.report.requests.models if look.report.requests and look.report.up else ():
        total = sum(work.draft_tokens for work in model.recent.values())
        for temperature, work in model.recent.items():
            share = work.draft_tokens / total if total > 0 else 0
            enough = (
                share >= marks.min_bucket_share
                and work.drafts >= marks.min_drafts_per_second * look.window
                and work.requests >= marks.min_requests
            )
            if enough and model.verdicts.get(temperature) is not Verdict.INSUFFICIENT_DATA:
                yield model.model_name, temperature, work, share


def _by_model(engines: Iterable[EngineReport]) -> dict[str, list[EngineReport]]:
    found: dict[str, list[EngineReport]] = defaultdict(list)
    for engine in engines:
        found[engine.key.model_name].append(engine)
    return found


def _gap_seconds(latency: Latency) -> float:
    return latency.gap_seconds
