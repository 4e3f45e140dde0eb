"""How much numbers that never fall have grown over a sliding window, however many polls fall into it."""

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from math import inf
from typing import Final

HOUR: Final = 3600.0  # seconds: the longer of the two windows that are judged
_PARTS: Final = 60  # the window's start is known to a sixtieth of its length
_LONGEST: Final = 1.5  # times its length that a window may span, over an outage; polls may be a window apart

Row = tuple[float, ...]


class GrowthWindow:
    """Keeps a bounded number of readings of totals: the latest, and about sixty from the window's start on.

    A reading that is longer than the one before had 0 there until then.
    """

    def __init__(self, seconds: float) -> None:
        """``seconds`` are the clock's."""
        self._seconds = seconds
        self._kept: deque[tuple[float, Row]] = deque()
        self._latest: tuple[float, Row] | None = None

    def append(self, at: float, reading: Row) -> None:
        """Adds a reading, with which the window begins anew after the clock was set back.

        It spans an outage while that makes it no longer than ``_LONGEST`` says, and then begins after the outage.
        A reading at -inf is the zero that the totals began at.
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
        """The time that ``growth`` covers: shorter than the window while less is known."""
        return self._latest[0] - self._kept[0][0] if self._latest is not None else 0.0

    @property
    def growth(self) -> Row:
        """The growth over the window that ends at the last reading; empty without one."""
        return _between(self._kept[0][1], self._latest[1]) if self._latest is not None else ()

    def readings(self) -> list[tuple[float, Row]]:
        """Those kept, each with its time: about sixty, the latest included."""
        if self._latest is None or self._latest is self._kept[-1]:
            return list(self._kept)
        return [*self._kept, self._latest]


def _between(before: Sequence[float], after: Sequence[float]) -> Row:
    return tuple(new - old for old, new in zip_longest(before, after, fillvalue=0.0))
