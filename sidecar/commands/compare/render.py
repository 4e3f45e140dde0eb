"""Comparisons as text and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from sidecar.commands.compare.comparison import ACCEPTANCE, LENGTH, Comparison, Difference
from sidecar.commands.compare.words import result, verdict
from sidecar.commands.tables import aligned, milliseconds, ratio

_HEADER: Final = ("temperature", "load", "metric", "before", "after", "difference", "error", "shown")


def text(comparison: Comparison) -> Iterator[str]:
    """A table of all differences and the verdict; times in milliseconds."""
    yield f"{comparison.after} (after) against {comparison.before} (before); times in milliseconds"
    yield ""
    if not comparison.differences:
        yield "the two have no level in common"
    else:
        yield from aligned(_HEADER, list(_rows(comparison)))
        yield ""
        yield from verdict(comparison)
    yield from (f"note: {note}" for note in comparison.notes)


def _rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    last = ("", "")
    for one in comparison.differences:
        here = (str(one.level.workload), str(one.level.load))
        yield (
            *(here if here != last else ("", "")),
            one.metric.name,
            _value(one, one.before),
            _value(one, one.after),
            "-" if one.change is None else f"{one.change.value:+.1%}",
            "-" if one.change is None or one.change.error is None else f"±{one.change.error:.1%}",
            "yes" if one.is_shown else "no",
        )
        last = here


def _value(one: Difference, value: float | None) -> str:
    if one.metric.is_time:
        return milliseconds(value)
    if one.metric in (ACCEPTANCE, LENGTH):
        return ratio(value)
    return "-" if value is None else f"{value:,.1f}"


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Plain JSON values; changes are after / before - 1."""
    return {
        "before": comparison.before,
        "after": comparison.after,
        "result": result(comparison),
        "verdict": list(verdict(comparison)) if comparison.differences else [],
        "differences": [
            {
                "workload": str(one.level.workload),
                "load": str(one.level.load),
                "metric": one.metric.name,
                "before": one.before,
                "after": one.after,
                "change": None if one.change is None else asdict(one.change),
                "shown": one.is_shown,
            }
            for one in comparison.differences
        ],
        "notes": list(comparison.notes),
    }
