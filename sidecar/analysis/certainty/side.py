"""On which side of a line a rate is: a state that begins well beyond it, and ends inside."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from sidecar.analysis.certainty.past import Estimate

FIRST: Final = 2.0
"""Errors by which a rate lies beyond a line, for a first statement that alarms no one."""
CHANGED: Final = 3.5
"""The same for a change: every poll is another look."""
ENDED: Final = 1.0
"""The same for the end of an alarm."""
_ENDS_OVER: Final = 2000.0  # seconds: the longest window that is asked, of half an hour


class Side(StrEnum):
    """Of a line."""

    BELOW = "below"
    ABOVE = "above"


@dataclass(frozen=True, slots=True)
class CertainSide:
    """The side that is certain, None if none is; it has been so since ``since``, Unix seconds."""

    side: Side | None = None
    since: float = -inf


NOWHERE: Final = CertainSide()


class Line(NamedTuple):
    """A line at ``value``, and how many errors beyond it each side begins.

    ``below`` and ``above``: where nothing was certain. ``falls`` and ``rises``: from the other
    side. ``is_alarm``: what is below ends once all of the last half hour is above.
    """

    value: float
    below: float = FIRST
    above: float = FIRST
    falls: float = CHANGED
    rises: float = CHANGED
    is_alarm: bool = False


def alarming(value: float) -> Line:
    """A line below which someone is alarmed: that has to be certain, and ends soon."""
    return Line(value, below=CHANGED, rises=ENDED, is_alarm=True)


Estimates = Callable[[float], Iterable[Estimate]]
"""By time: what is known since then, the shortest window first."""


def certain_side(before: CertainSide, line: Line, estimates: Estimates, at: float) -> CertainSide:
    """The side at ``at`` that follows ``before``.

    After a change, only what is counted from then on decides: what led to it does not count twice.
    """
    known = list(estimates(before.since))
    if not known:
        return before

    recent = known[0]
    falls = line.below if before.side is None else line.falls
    may_fall = before.side is not Side.BELOW and recent.rate < line.value + recent.error
    if may_fall and any(one.rate + falls * one.error < line.value for one in known):
        return CertainSide(Side.BELOW, at)

    may_rise = before.side is not Side.ABOVE and recent.rate >= line.value - recent.error
    if may_rise and _rises(before, line, known):
        return CertainSide(Side.ABOVE, at)
    return before


def _rises(before: CertainSide, line: Line, known: Sequence[Estimate]) -> bool:
    if before.side is None:
        return any(one.rate - line.above * one.error >= line.value for one in known)
    beyond = [one.rate - line.rises * one.error >= line.value for one in known]
    if line.is_alarm:
        recent = sum(one.seconds <= _ENDS_OVER for one in known)
        return all(beyond[: max(recent, 1)])
    return any(beyond)


def needed(line: Line, known: Estimate) -> float:
    """In how many seconds more a rate that is as it was will be certain, where nothing is yet."""
    gap = known.rate - line.value
    errors = line.above if gap >= 0 else line.below
    if not gap:
        return inf
    whole = known.seconds * (errors * known.error / gap) ** 2
    return max(whole - known.seconds, 0.0)
