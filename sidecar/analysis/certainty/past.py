"""What one kind of traffic has drafted and accepted over the last hours, with its error."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from sidecar.analysis.certainty.spread import BLOCK, Spread, SpreadWatch
from sidecar.analysis.certainty.sums import Sums

WINDOWS: Final = (600.0, 1800.0, 3600.0, 14_400.0)
"""Seconds, ascending: short ones notice a large change soon, long ones a small one."""
_SPACING: Final = 120.0  # seconds between two readings that are kept
_OUTAGE: Final = 1.5  # window lengths: a window that spans more begins after the gap


class Counted(NamedTuple):
    """Requests, and the tokens that were drafted and accepted for them."""

    requests: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0


class _Reading(NamedTuple):
    at: float
    totals: Counted


class Estimate(NamedTuple):
    """An acceptance ``rate`` over ``seconds``, of so many requests, with its standard error."""

    seconds: float
    requests: float
    rate: float
    error: float


@dataclass(frozen=True, slots=True)
class Past:
    """What was counted until ``at``; the oldest reading is at most four hours old.

    ``running`` are requests that have drafted and may not be counted yet: a window has at least so
    many, however long they run.
    """

    readings: Sequence[_Reading]
    times: Sequence[float]  # of the readings
    latest: _Reading
    spread: Spread
    running: float = 0.0

    @property
    def at(self) -> float:
        """The time of the last reading."""
        return self.latest.at

    def estimates(self, least: float, since: float = -inf) -> Iterator[Estimate]:
        """Of each window with at least so many requests, the shortest first.

        None begins before ``since``; two that would be the same are one.
        """
        if self.latest.totals.drafted <= self.readings[0].totals.drafted:
            return  # nothing was drafted, as at temperatures that nobody asks for

        known = 0.0
        first = bisect_left(self.times, since)
        for seconds in WINDOWS:
            start = self._start(seconds, first)
            if start is None or self.latest.at - start.at <= known:
                continue
            found = self._over(start)
            if found is not None and found.requests >= least:
                known = found.seconds
                yield found

    def _over(self, start: _Reading) -> Estimate | None:
        now = self.latest.totals
        then = start.totals
        requests = max(now.requests - then.requests, self.running)
        drafted = now.drafted - then.drafted
        if requests <= 0 or drafted <= 0:
            return None
        rate = min((now.accepted - then.accepted) / drafted, 1.0)
        return Estimate(self.at - start.at, requests, rate, self.spread.error(requests))

    def _start(self, seconds: float, first: int) -> _Reading | None:
        """The reading with which so many seconds begin, none before the ``first``."""
        at = self.latest.at
        place = max(bisect_right(self.times, at - seconds) - 1, 0)
        if self.times[place] < at - _OUTAGE * seconds:
            place += 1
        place = max(place, first)
        return self.readings[place] if place < len(self.readings) else None


class PastWatch:
    """Follows one kind of traffic; bounded by the longest window."""

    def __init__(self) -> None:
        self._totals = Counted()
        self._readings: tuple[_Reading, ...] = ()
        self._times: tuple[float, ...] = ()  # theirs
        self._latest: _Reading | None = None
        self._block: _Reading | None = None  # where it began
        self._running = 0.0
        self._watch = SpreadWatch()

    def grow(self, growth: Counted) -> None:
        """Adds what was counted since the last poll."""
        self._totals = Counted(*map(sum, zip(self._totals, growth, strict=True)))

    def finished(self, sums: Sums) -> None:
        """Takes in what requests with drafts had in total when they finished."""
        self._watch.finished(sums)

    def mark(self, at: float, running: float = 0.0) -> None:
        """Timestamps what was counted so far; if the clock was set back, begins again.

        ``running`` is as in ``Past``.
        """
        self._running = running
        if self._latest is not None and at <= self._latest.at:
            self._readings = ()
            self._block = None

        self._latest = _Reading(at, self._totals)
        if not self._readings or at - self._readings[-1].at >= _SPACING:
            oldest = at - WINDOWS[-1]
            kept = [one for one in self._readings if one.at > oldest - _SPACING]
            self._readings = (*kept, self._latest)
            self._times = tuple(one.at for one in self._readings)
        self._end_block(self._latest)

    def _end_block(self, now: _Reading) -> None:
        if self._block is None:
            self._block = now
        if now.at - self._block.at < BLOCK:
            return

        requests, drafted, accepted = (
            after - before for after, before in zip(now.totals, self._block.totals, strict=True)
        )
        self._watch.block(requests, min(accepted / drafted, 1.0) if drafted > 0 else None)
        self._block = now

    @property
    def spread(self) -> Spread:
        """How much its requests differ."""
        return self._watch.spread

    @property
    def past(self) -> Past | None:
        """As of the last reading; None before the first."""
        if self._latest is None:
            return None
        return Past(self._readings, self._times, self._latest, self.spread, self._running)
