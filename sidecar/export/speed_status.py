"""Speedup as JSON, a part of ``/api/v1/status``."""

from typing import Any

from sidecar.analysis.speed_state import ModelSpeed, TemperatureSpeed
from sidecar.analysis.speedup import WITHHELD, Speedup
from sidecar.analysis.steps import LOAD_LABELS
from sidecar.analysis.target_state import TargetReport


def model_speed(report: TargetReport, model_name: str) -> dict[str, Any] | None:
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
