"""Comparisons in words, as a table and as JSON, and whether they keep a limit."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from sidecar.commands.compare.comparison import MEDIANS, METRICS, ComparedLevel, Comparison, Difference
from sidecar.commands.sweep.speed_table import Cells, speed_cells, speed_table


class Result(StrEnum):
    """Which side is faster."""

    FASTER = "faster"
    SLOWER = "slower"
    MIXED = "mixed"
    NO_DIFFERENCE = "no_difference_shown"
    INSUFFICIENT_DATA = "insufficient_data"


def result(comparison: Comparison) -> Result:
    """By the speeds that are shown to differ; if there are none, nothing is claimed."""
    speeds = [one for one in comparison.differences if one.is_speed]
    if not any(one.change is not None and one.change.error is not None for one in speeds):
        return Result.INSUFFICIENT_DATA
    slower = [one.slowdown is not None and one.slowdown.value > 0 for one in speeds if one.is_shown]
    if not slower:
        return Result.NO_DIFFERENCE
    return Result.SLOWER if all(slower) else Result.MIXED if any(slower) else Result.FASTER


def verdict(comparison: Comparison) -> Iterator[str]:
    """The verdict in words, and a line for each metric with a shown difference."""
    before, after = comparison.before, comparison.after
    yield {
        Result.FASTER: f"verdict: {after} is faster than {before}",
        Result.SLOWER: f"verdict: {after} is slower than {before}",
        Result.MIXED: f"verdict: {after} is faster than {before} in some respects and slower in others",
        Result.NO_DIFFERENCE: f"verdict: no difference in speed is shown between {before} and {after}",
        Result.INSUFFICIENT_DATA: "verdict: too little data for any claim: sweep with more --rounds and --requests",
    }[result(comparison)]
    for one in comparison.differences:
        change = one.change
        if one.is_shown and change is not None and change.low is not None and change.high is not None:
            least, most = sorted((abs(change.low), abs(change.high)))
            word = "higher" if change.value > 0 else "lower"
            yield f"  {one.metric} is {least:.0%} to {most:.0%} {word} at {one.level}"
    errors = [one.change.error for one in _gated(comparison) if one.change is not None and one.change.error is not None]
    if errors:
        yield f"  the errors of TTFT, TPOT and tokens/s at the median are {min(errors):.1%} to {max(errors):.1%}"


def _gated(comparison: Comparison) -> list[Difference]:
    """The metrics that --fail-if-slower checks: medians and throughput, whose error is known soonest."""
    return [one for one in comparison.differences if one.metric in MEDIANS and one.change]


class Gate(StrEnum):
    """Whether a limit on slowness holds."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


def gate(comparisons: Sequence[Comparison], limit: float) -> tuple[Gate, list[str]]:
    """Failed if a level is shown to be slower by ``limit`` or more; undecided if that cannot be excluded."""
    failed, open_ = [], []
    for comparison in comparisons:
        for one in _gated(comparison):
            slowdown = one.slowdown
            if slowdown is None:
                continue
            where = f"{comparison.after}: {one.metric} at {one.level}"
            if one.is_shown and slowdown.value >= limit:
                failed.append(f"{where} is slower by {slowdown.value:.1%}, the limit is {limit:.1%}")
            elif slowdown.high is None or slowdown.high >= limit:
                bound = "unknown" if slowdown.high is None else f"up to {slowdown.high:.1%}"
                open_.append(f"{where}: a slowdown of {limit:.1%} cannot be excluded ({bound})")
    if failed:
        return Gate.FAILED, failed
    return (Gate.UNDECIDED, open_) if open_ or not any(map(_gated, comparisons)) else (Gate.PASSED, [])


def text(comparison: Comparison) -> Iterator[str]:
    """A table of both sides with the changes, and the verdict; times in milliseconds."""
    yield f"{comparison.after} (after) against {comparison.before} (before); times in milliseconds"
    yield ""
    if not comparison.levels:
        yield "the two have no level in common"
    else:
        yield from speed_table([(one.before.level, _rows(one)) for one in comparison.levels], ("sweep", *METRICS))
        yield ""
        yield from verdict(comparison)
    yield from (f"note: {note}" for note in comparison.notes)


def _rows(level: ComparedLevel) -> list[Cells]:
    changes = {one.metric: one.change for one in level.differences}
    errors = {metric: None if change is None else change.error for metric, change in changes.items()}
    return [
        {**speed_cells(level.before.speed, level.before.speculation), "sweep": "before"},
        {**speed_cells(level.after.speed, level.after.speculation), "sweep": "after"},
        {
            "sweep": "change",
            **{one: "-" if change is None else f"{change.value:+.1%}" for one, change in changes.items()},
        },
        {"sweep": "error", **{one: "-" if error is None else f"±{error:.1%}" for one, error in errors.items()}},
    ]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Plain JSON values; changes are after / before - 1."""
    return {
        "before": comparison.before,
        "after": comparison.after,
        "result": result(comparison),
        "verdict": list(verdict(comparison)) if comparison.levels else [],
        "differences": [
            {
                "workload": str(one.level.workload),
                "load": str(one.level.load),
                "metric": one.metric,
                "before": one.before,
                "after": one.after,
                "change": None if one.change is None else asdict(one.change),
                "shown": one.is_shown,
            }
            for one in comparison.differences
        ],
        "notes": list(comparison.notes),
    }
