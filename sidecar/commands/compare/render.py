"""A comparison in words and as a table, and whether it stays within a limit."""

from collections.abc import Iterator
from enum import StrEnum

from sidecar.commands.compare.comparison import COMPARED, MEDIANS, ComparedLevel, Comparison, Result
from sidecar.commands.sweep.metrics import Cells, cells, table


def text(comparison: Comparison) -> Iterator[str]:
    """A table of both sides with the changes, and the verdict; times in milliseconds."""
    yield f"{comparison.after} (after) against {comparison.before} (before); times in milliseconds"
    yield ""
    if not comparison.levels:
        yield "the two sweeps have no level in common"
    else:
        yield from table([(one.level, _rows(one)) for one in comparison.levels], ("sweep", *COMPARED))
        yield ""
        yield from verdict(comparison)
    yield from (f"note: {note}" for note in comparison.notes)


def _rows(level: ComparedLevel) -> list[Cells]:
    change, error = {"sweep": "change"}, {"sweep": "error"}
    for metric, found in level.changes.items():
        change[metric] = "-" if found is None else f"{found.value:+.1%}"
        error[metric] = "-" if found is None or found.error is None else f"±{found.error:.1%}"
    sides = (("before", level.before), ("after", level.after))
    return [*({**cells(side), "sweep": name} for name, side in sides), change, error]


def verdict(comparison: Comparison) -> Iterator[str]:
    """The verdict in words, and a line for each metric with a shown difference."""
    before, after = comparison.before, comparison.after
    yield {
        Result.FASTER: f"verdict: {after} is faster than {before}",
        Result.SLOWER: f"verdict: {after} is slower than {before}",
        Result.MIXED: f"verdict: {after} is faster than {before} in some respects and slower in others",
        Result.NO_DIFFERENCE: f"verdict: no significant difference in speed between {before} and {after}",
        Result.INSUFFICIENT_DATA: "verdict: not enough data: sweep with more --rounds and --requests",
    }[comparison.result]
    for level in comparison.levels:
        for metric in level.shown:
            change = level.changes[metric]
            if change is not None and change.error is not None:
                size, word = abs(change.value), "higher" if change.value > 0 else "lower"
                least, most = size - change.error, size + change.error
                yield f"  {metric} is {least:.0%} to {most:.0%} {word} at {level.level}"


class Gate(StrEnum):
    """Whether a limit on slowness holds."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


def gate(comparison: Comparison, limit: float) -> tuple[Gate, list[str]]:
    """Failed if a level is significantly slower by ``limit`` or more; undecided if that cannot be ruled out.

    Checks medians and throughput, whose errors need the fewest requests.
    """
    failed, undecided = [], []
    for level, metric in ((level, metric) for level in comparison.levels for metric in MEDIANS):
        slowdown, where = level.slowdown(metric), f"{metric} at {level.level}"
        if slowdown is None:
            continue
        if metric in level.shown and slowdown.value >= limit:
            failed.append(f"{where} is slower by {slowdown.value:.1%}; the limit is {limit:.1%}")
        elif slowdown.high is None or slowdown.high >= limit:
            bound = "unknown" if slowdown.high is None else f"up to {slowdown.high:.1%}"
            undecided.append(f"{where}: a slowdown of {limit:.1%} cannot be ruled out ({bound})")
    if failed or undecided:
        return (Gate.FAILED, failed) if failed else (Gate.UNDECIDED, undecided)
    return Gate.PASSED, []
