"""A comparison in words: the verdict, and whether it fails a limit."""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from sidecar.commands.compare.comparison import TOKENS, TPOT_P50, TTFT_P50, Comparison, Difference


class Result(StrEnum):
    """Which side is faster."""

    FASTER = "faster"
    SLOWER = "slower"
    MIXED = "mixed"
    NO_DIFFERENCE = "no_difference_shown"
    INSUFFICIENT_DATA = "insufficient_data"


def result(comparison: Comparison) -> Result:
    """By the speeds that are shown to differ; if there are none, nothing is claimed."""
    speeds = [one for one in comparison.differences if one.metric.is_speed]
    shown = [one.slowdown for one in speeds if one.is_shown]
    if not any(one.change is not None and one.change.error is not None for one in speeds):
        return Result.INSUFFICIENT_DATA
    slower = [change for change in shown if change is not None and change.value > 0]
    if not shown:
        return Result.NO_DIFFERENCE
    return Result.FASTER if not slower else Result.SLOWER if len(slower) == len(shown) else Result.MIXED


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
            yield f"  {one.metric.name} is {least:.0%} to {most:.0%} {word} at {one.level}"
    errors = [one.change.error for one in _gated(comparison) if one.change is not None and one.change.error is not None]
    if errors:
        yield f"  the errors of TTFT, TPOT and tokens/s at the median are {min(errors):.1%} to {max(errors):.1%}"


def _gated(comparison: Comparison) -> list[Difference]:
    """The metrics that --fail-if-slower checks: medians and throughput, which need the fewest requests for an error."""
    return [one for one in comparison.differences if one.metric in (TTFT_P50, TPOT_P50, TOKENS) and one.change]


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
            where = f"{comparison.after}: {one.metric.name} at {one.level}"
            if one.is_shown and slowdown.value >= limit:
                failed.append(f"{where} is slower by {slowdown.value:.1%}, the limit is {limit:.1%}")
            elif slowdown.high is None or slowdown.high >= limit:
                bound = "unknown" if slowdown.high is None else f"up to {slowdown.high:.1%}"
                open_.append(f"{where}: a slowdown of {limit:.1%} cannot be excluded ({bound})")
    if failed:
        return Gate.FAILED, failed
    return (Gate.UNDECIDED, open_) if open_ or not any(map(_gated, comparisons)) else (Gate.PASSED, [])
