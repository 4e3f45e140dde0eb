"""The state as JSON, for users' scripts and for the page: ``/api/v1/status``."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sidecar import __version__
from sidecar.analysis.acceptance import Acceptance
from sidecar.analysis.attribution.result import Attribution, AttributionOutcome
from sidecar.analysis.engine_state import EngineReport
from sidecar.analysis.latency import Latency, gap_growth
from sidecar.analysis.limitation import EXPLANATIONS, Limitation
from sidecar.analysis.request_state import ModelRequests, RequestReport
from sidecar.analysis.request_window import SpeculationSummary
from sidecar.analysis.speed_state import ModelSpeed, TemperatureSpeed
from sidecar.analysis.speedup import WITHHELD, Speedup
from sidecar.analysis.steps import LOAD_LABELS
from sidecar.analysis.target_state import TargetReport
from sidecar.analysis.verdict import Judgement, ModelJudgement
from sidecar.export.collector import ExportOptions
from sidecar.export.request_notes import attribution_outcomes, request_notes


def status(reports: Iterable[TargetReport], options: ExportOptions) -> dict[str, Any]:
    """Times are Unix seconds or seconds, ratios from 0 to 1; what is unknown is null or missing, never 0."""
    return {
        "version": __version__,
        "thresholds": dict(options.thresholds),
        "targets": [_target(report, options) for report in reports],
    }


def _target(report: TargetReport, options: ExportOptions) -> dict[str, Any]:
    error = report.last_error
    return {
        "name": report.name,
        "up": report.up,
        "vllm": report.version if report.up else None,
        "last_scrape": report.last_scrape,
        "scrape_duration": report.duration,
        "scrape_interval": report.interval,
        "scrape_errors": dict(report.errors),
        "last_error": None
        if error is None
        else {"reason": error.reason, "message": str(error), "remedy": error.remedy},
        "restarts": report.restarts,
        "engines": [_engine(report, engine, options) for engine in report.engines] if report.up else [],
        "models": [_model(model, report) for model in report.judgements],
        "requests": request_status(report.requests, report.judgements, report.speeds),
    }


def _model(model: ModelJudgement, report: TargetReport) -> dict[str, Any]:
    """A model as a whole, over all its engines; ``is_covered``: the temperatures represent its traffic."""
    return {
        "model_name": model.model_name,
        **_judgement(model.whole),
        "is_covered": model.is_covered,
        "speed": _model_speed(report, model.model_name),
    }


def _judgement(judgement: Judgement) -> dict[str, Any]:
    evidence = judgement.evidence
    return {
        "verdict": judgement.verdict,
        "basis": judgement.basis,
        "advice": judgement.advice,
        "drafts": evidence.drafts,
        "draft_tokens": evidence.draft_tokens,
        "accepted_tokens": evidence.accepted_tokens,
        "acceptance": evidence.acceptance,
        "position_rates": list(evidence.position_rates),
    }


def _engine(report: TargetReport, engine: EngineReport, options: ExportOptions) -> dict[str, Any]:
    baselines = options.baselines.get(engine.key.model_name, {})
    return {
        "model_name": engine.key.model_name,
        "engine": engine.key.engine,
        "acceptance": _acceptance(engine.acceptance),
        "acceptance_history": [list(point) for point in engine.acceptance_history],
        "kv_cache_history": [list(point) for point in engine.kv_cache_history],
        "counters": dict(engine.counters),
        "gauges": dict(engine.gauges),
        "kv_cache_usage_peak": engine.kv_cache_peak,
        "kv_cache_capacity_tokens": engine.kv_cache_capacity_tokens,
        "latency": {phase: _latency(latency, baselines.get(phase, {})) for phase, latency in engine.latencies.items()},
        "limitations": _limitations(report.limitations.get(engine.key, frozenset())),
    }


def _acceptance(acceptance: Acceptance | None) -> dict[str, Any] | None:
    if acceptance is None:
        return None
    return {
        "rate": acceptance.rate,
        "length": acceptance.length,
        "position_rates": list(acceptance.position_rates),
        "draft_tokens": acceptance.draft_tokens,
        "accepted_tokens": acceptance.accepted_tokens,
        "drafts": acceptance.drafts,
    }


def _latency(latency: Latency, baseline: Mapping[float, float]) -> dict[str, Any]:
    return {
        "quantiles": {str(quantile): seconds for quantile, seconds in latency.quantiles.items()},
        "count": latency.count,
        "resolution": latency.resolution,
        "gap_seconds": latency.gap_seconds,
        "gap_ratio": latency.gap_ratio,
        "gap_growth": gap_growth(latency, baseline),
    }


def _limitations(found: Iterable[Limitation]) -> list[dict[str, str]]:
    return [{"name": limitation, "explanation": EXPLANATIONS[limitation]} for limitation in sorted(found)]


def request_status(
    report: RequestReport | None, judgements: Sequence[ModelJudgement], speeds: Mapping[str, ModelSpeed]
) -> dict[str, Any] | None:
    """Null without a request source.

    ``events`` are since the start; ``ended`` and ``attributed`` count requests of the sliding window.
    """
    if report is None:
        return None
    found = attribution_outcomes(report)
    judged = {model.model_name: model for model in judgements}
    return {
        "source": report.source,
        "events": report.events,
        "exact": any(_is_exact(model) for model in report.models),
        "dropped": dict(report.dropped),
        "ended": found.total(),
        "attributed": found[AttributionOutcome.EXACT] + found[AttributionOutcome.INFERRED],
        "notes": list(request_notes(report, judgements)),
        "models": [
            _model_requests(model, judged.get(model.model_name), speeds.get(model.model_name))
            for model in report.models
        ],
    }


def _is_exact(model: ModelRequests) -> bool:
    """Whether any reply carried vLLM's own numbers."""
    return any(
        count for (_, attribution, _outcome), count in model.stats.requests.items() if attribution is Attribution.EXACT
    )


def _model_requests(model: ModelRequests, judged: ModelJudgement | None, speed: ModelSpeed | None) -> dict[str, Any]:
    judgements = judged.temperatures if judged else {}
    speeds = speed.temperatures if speed else {}
    total = sum(work.draft_tokens for work in model.recent.values())
    return {
        "model_name": model.model_name,
        "coverage": model.coverage,
        "residual": model.residual,
        "ended": dict(model.attribution_outcomes),
        "temperatures": {
            temperature: {
                **temperature_status(work, judgements.get(temperature) or Judgement(evidence=work.evidence(total))),
                "speed": temperature_speed(speeds.get(temperature)),
            }
            for temperature, work in model.recent.items()
        },
    }


def temperature_status(work: SpeculationSummary, judgement: Judgement) -> dict[str, Any]:
    """One bucket over the sliding window; no verdict while vLLM is down."""
    return {
        **_judgement(judgement),
        "share": judgement.evidence.share,
        "requests": work.requests,
        "p10": work.p10,
        "p50": work.p50,
        "p90": work.p90,
        "distribution": list(work.distribution),
        "attribution": work.attribution,
        "ttft": {"p50": work.ttft_p50, "p99": work.ttft_p99},
        "tpot": {"p50": work.tpot_p50, "p99": work.tpot_p99},
    }


def _model_speed(report: TargetReport, model_name: str) -> dict[str, Any] | None:
    """One model; null if it does not speculate. ``withheld`` explains why there is no speedup."""
    speed = report.speeds.get(model_name)
    if speed is None:
        return None
    whole = speed.whole
    return {
        **_speedup(whole.speedup),
        "withheld": WITHHELD[whole.withheld] if whole.withheld is not None else None,
        "reference": speed.reference,
        "requests_running": whole.steps.running if whole.steps is not None else None,
        "draft_tokens_per_draft": whole.costs.drafted if whole.costs is not None else None,
        "break_even_length": whole.break_even_length,
        "break_even_acceptance": whole.break_even_acceptance,
        "by_load": _by_load(report, model_name, speed),
    }


def temperature_speed(speed: TemperatureSpeed | None) -> dict[str, Any]:
    """One temperature; all null or 0 if nothing is known. ``contradicts``: steps and the source's clock disagree."""
    return {
        **_speedup(speed.speedup if speed else None),
        "contradicts": speed is not None and speed.contradicts,
        "saved_seconds": speed.saved_seconds if speed else 0.0,
        "lost_seconds": speed.lost_seconds if speed else 0.0,
    }


def _speedup(found: Speedup | None) -> dict[str, float | None]:
    """Times are in seconds per token."""
    return {
        "speedup": found.ratio if found else None,
        "error": found.error if found else None,
        "plain_seconds": found.plain_seconds if found else None,
        "actual_seconds": found.actual_seconds if found else None,
    }


def _by_load(report: TargetReport, model_name: str, speed: ModelSpeed) -> list[dict[str, Any]]:
    """Actual (since the start) and plain seconds per token, for each load at which either is known."""
    plain = speed.plain_seconds
    engines = [loads for key, loads in report.loads.items() if key.model_name == model_name]
    found = []
    for label in LOAD_LABELS:
        tokens = sum(loads[label].tokens for loads in engines)
        actual = sum(loads[label].seconds for loads in engines) / tokens if tokens else None
        if actual is not None or label in plain:
            found.append({"running": label, "actual_seconds": actual, "plain_seconds": plain.get(label)})
    return found
