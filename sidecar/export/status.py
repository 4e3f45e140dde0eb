"""The state as JSON, for people's scripts and for the page: ``/api/v1/status``."""

from collections.abc import Iterable, Mapping
from typing import Any

from sidecar import __version__
from sidecar.analysis.acceptance import Acceptance
from sidecar.analysis.engine_state import EngineReport
from sidecar.analysis.latency import Latency, gap_growth
from sidecar.analysis.limitation import EXPLANATIONS, Limitation
from sidecar.analysis.target_state import TargetReport
from sidecar.export.collector import ExportOptions
from sidecar.export.request_status import request_status


def status(reports: Iterable[TargetReport], options: ExportOptions) -> dict[str, Any]:
    """Times are Unix seconds or seconds, ratios 0 to 1; what is not known is null or missing, never 0."""
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
        "requests": request_status(report.requests, options.thresholds.get("coverage", 0.0)),
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
