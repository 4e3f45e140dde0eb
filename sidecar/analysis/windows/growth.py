"""How much totals that never decrease have grown over a sliding window."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

HOUR: Final = 3600.0  # seconds: the longer of the two windows that are judged
_PARTS: Final = 60  # the window's start is accurate to a sixtieth of its length
# The longest span of a window with an outage, in window lengths; polls may be one length apart.
_LONGEST: Final = 1.5

Total = TypeVar("Total")


class Reading(NamedTuple, Generic[Total]):
    """The totals at one moment; ``at`` is in seconds, by the window's clock."""

    at: float
    totals: Total


class GrowthWindow(Generic[Total]):
    """Keeps a bounded number of readings of totals.

    The latest, and about sixty from the window's start on, however many polls fall into it.
    """

    def __init__(self, seconds: float, subtract: Callable[[Total, Total], Total]) -> None:
        """``seconds`` is the length of the window, by the clock that gives ``at``.

        ``subtract`` gives the growth from its second argument to its first.
        """
        self._seconds = seconds
        self._part = seconds / _PARTS
        self._longest = _LONGEST * seconds
        self._subtract = subtract
        self._kept: deque[Reading[Total]] = deque()
        self._latest: Reading[Total] | None = None

    def append(self, at: float, totals: Total) -> None:
        """Adds a reading; if the clock was set back, the window starts again with it.

        The window spans an outage as long as it does not exceed ``_LONGEST``; beyond that, it
        starts after the outage. A reading at -inf is the zero at which the totals began.
        """
        if self._latest is not None and at <= self._latest.at:
            self._kept.clear()

        kept = self._kept
        self._latest = Reading(at, totals)
        if not kept or at - kept[-1].at >= self._part:
            kept.append(self._latest)

        # Until the oldest one kept is the last at or before the window's start.
        start = at - self._seconds
        while len(kept) > 1 and (kept[1].at <= start or -inf < kept[0].at < at - self._longest):
            kept.popleft()

    @property
    def seconds(self) -> float:
        """The time that ``growth`` covers: shorter than the window while there is less history."""
        if self._latest is None:
            return 0.0
        return self._latest.at - self._kept[0].at

    @property
    def growth(self) -> Total | None:
        """The growth over the window that ends at the last reading; None if there is none."""
        if self._latest is None:
            return None
        return self._subtract(self._latest.totals, self._kept[0].totals)

    @property
    def begins(self) -> float | None:
        """The time of the reading with which the window begins; None before the first."""
        return self._kept[0].at if self._kept else None

    @property
    def kept_last(self) -> float | None:
        """The time of the last of the readings that are kept; None before the first."""
        return self._kept[-1].at if self._kept else None

    def start(self, seconds: float) -> Reading[Total]:
        """The reading with which the last ``seconds`` begin: the latest kept that is as old.

        The oldest one if there is none. Requires a reading.
        """
        latest = self._latest or self._kept[-1]
        return self.since(latest.at - seconds)

    def since(self, at: float) -> Reading[Total]:
        """The latest reading kept that is not after ``at``, the oldest one if there is none.

        Requires a reading.
        """
        as_old = (one for one in reversed(self._kept) if one.at <= at)
        return next(as_old, self._kept[0])

    def readings(self) -> list[Reading[Total]]:
        """The kept readings: about sixty, including the latest."""
        if self._latest is None or self._latest is self._kept[-1]:
            return list(self._kept)
        return [*self._kept, self._latest]


def subtract(after: Sequence[float], before: Sequence[float]) -> tuple[float, ...]:
    """The growth of a row of totals.

    If it has become longer, its additional totals were 0 until then.
    """
    return tuple(new - old for old, new in zip_longest(before, after, fillvalue=0.0))
