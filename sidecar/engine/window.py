"""How much totals that never decrease have grown over a sliding window, however many polls fall into it."""

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from math import inf
from typing import Final

HOUR: Final = 3600.0  # seconds: the longer of the two windows that are judged
_PARTS: Final = 60  # the window's start is accurate to a sixtieth of its length
_LONGEST: Final = 1.5  # the longest span of a window with an outage, in window lengths; polls may be one length apart

Row = tuple[float, ...]


class GrowthWindow:
    """Keeps a bounded number of readings of totals: the latest, and about sixty from the window's start on.

    If a reading is longer than the one before, its additional totals were 0 until then.
    """

    def __init__(self, seconds: float) -> None:
        """``seconds`` is the length of the window, by the clock that gives ``at``."""
        self._seconds = seconds
        self._kept: deque[tuple[float, Row]] = deque()
        self._latest: tuple[float, Row] | None = None

    def append(self, at: float, reading: Row) -> None:
        """Adds a reading; if the clock was set back, the window starts again with it.

        The window spans an outage as long as it does not exceed ``_LONGEST``; beyond that, it starts after the outage.
        A reading at -inf is the zero at which the totals began.
        """
        if self._latest is not None and at <= self._latest[0]:
            self._kept.clear()
        self._latest = (at, reading)
        if not self._kept or at - self._kept[-1][0] >= self._seconds / _PARTS:
            self._kept.append(self._latest)
        # The oldest one kept is the last at or before the window's start.
        while len(self._kept) > 1 and (
            self._kept[1][0] <= at - self._seconds or -inf < self._kept[0][0] < at - _LONGEST * self._seconds
        ):
            self._kept.popleft()

    @property
    def seconds(self) -> float:
        """The time that ``growth`` covers: shorter than the window while there is less history."""
        return self._latest[0] - self._kept[0][0] if self._latest is not None else 0.0

    @property
    def growth(self) -> Row:
        """The growth over the window that ends at the last reading; empty if there is none."""
        return _between(self._kept[0][1], self._latest[1]) if self._latest is not None else ()

    def readings(self) -> list[tuple[float, Row]]:
        """The kept readings, each with its time: about sixty, including the latest."""
        if self._latest is None or self._latest is self._kept[-1]:
            return list(self._kept)
        return [*self._kept, self._latest]


def _between(before: Sequence[float], after: Sequence[float]) -> Row:
    return tuple(new - old for old, new in zip_longest(before, after, fillvalue=0.0))
