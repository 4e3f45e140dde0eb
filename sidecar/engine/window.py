"""How much totals that never decrease have grown over a sliding window.

Of any totals, of an engine's counters, and of its latency histograms, however many polls fall into
the window.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from math import inf, isnan
from typing import Final, Generic, TypeVar

from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading

HOUR: Final = 3600.0  # seconds: the longer of the two windows that are judged
_PARTS: Final = 60  # the window's start is accurate to a sixtieth of its length
# The longest span of a window with an outage, in window lengths; polls may be one length apart.
_LONGEST: Final = 1.5

Row = tuple[float, ...]
Reading = TypeVar("Reading")


class GrowthWindow(Generic[Reading]):
    """Keeps a bounded number of readings of totals.

    The latest, and about sixty from the window's start on.
    """

    def __init__(self, seconds: float, subtract: Callable[[Reading, Reading], Reading]) -> None:
        """``seconds`` is the length of the window, by the clock that gives ``at``.

        ``subtract`` gives the growth from its second argument to its first.
        """
        self._seconds = seconds
        self._subtract = subtract
        self._kept: deque[tuple[float, Reading]] = deque()
        self._latest: tuple[float, Reading] | None = None

    def append(self, at: float, reading: Reading) -> None:
        """Adds a reading; if the clock was set back, the window starts again with it.

        The window spans an outage as long as it does not exceed ``_LONGEST``; beyond that, it
        starts after the outage. A reading at -inf is the zero at which the totals began.
        """
        if self._latest is not None and at <= self._latest[0]:
            self._kept.clear()
        self._latest = (at, reading)
        if not self._kept or at - self._kept[-1][0] >= self._seconds / _PARTS:
            self._kept.append(self._latest)
        # The oldest reading kept is the last at or before the window's start.
        while len(self._kept) > 1 and (
            self._kept[1][0] <= at - self._seconds
            or -inf < self._kept[0][0] < at - _LONGEST * self._seconds
        ):
            self._kept.popleft()

    @property
    def seconds(self) -> float:
        """The time that ``growth`` covers: shorter than the window while there is less history."""
        return self._latest[0] - self._kept[0][0] if self._latest is not None else 0.0

    @property
    def growth(self) -> Reading | None:
        """The growth over the window that ends at the last reading; None if there is none."""
        if self._latest is None:
            return None
        return self._subtract(self._latest[1], self._kept[0][1])

    def readings(self) -> list[tuple[float, Reading]]:
        """The kept readings, each with its time: about sixty, including the latest."""
        if self._latest is None or self._latest is self._kept[-1]:
            return list(self._kept)
        return [*self._kept, self._latest]


def subtract(after: Sequence[float], before: Sequence[float]) -> Row:
    """The growth of a row of totals.

    If it has become longer, its additional totals were 0 until then.
    """
    return tuple(new - old for old, new in zip_longest(before, after, fillvalue=0.0))


class CounterWindow(GrowthWindow[Row]):
    """Readings of an engine's counters, which start again at 0 when its vLLM restarts.

    NaN where one is not known.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, subtract)
        self._carried: Row = ()  # counted before the last restart
        self._known: Row = ()  # the last value of each counter

    def count(self, at: float, counters: Row, *, has_restarted: bool) -> None:
        """Adds a reading.

        With ``has_restarted``, the counters have started again at 0 since the last one.
        """
        if has_restarted:
            self._carried, self._known = _added(self._carried, self._known), ()

        self._known = tuple(
            old if isnan(new) else new
            for old, new in zip_longest(self._known, counters, fillvalue=0.0)
        )
        self.append(at, _added(self._carried, counters) if self._carried else counters)


class HistogramWindow:
    """Bounded history of an engine's histograms, which start again at 0 when its vLLM restarts."""

    def __init__(self, seconds: float) -> None:
        """``seconds`` is the length of the window, by the clock that gives ``at``."""
        self._seconds = seconds
        # With the buckets' edges.
        self._windows: dict[Phase, tuple[tuple[float, ...], CounterWindow]] = {}
        self._latest: Mapping[Phase, HistogramReading] = {}

    def append(
        self, at: float, histograms: Mapping[Phase, HistogramReading], *, has_restarted: bool
    ) -> None:
        """Adds a page's readings.

        Different buckets restart a window, since they come from another vLLM version.
        """
        self._latest = histograms
        if has_restarted:  # a histogram that is not on the page starts again unseen
            self._windows = {
                phase: window for phase, window in self._windows.items() if phase in histograms
            }

        for phase, reading in histograms.items():
            if phase not in self._windows or self._windows[phase][0] != reading.edges:
                self._windows[phase] = (reading.edges, CounterWindow(self._seconds))
            self._windows[phase][1].count(at, reading.counts, has_restarted=has_restarted)

    @property
    def growth(self) -> dict[Phase, HistogramReading]:
        """The observations in the window that ends at the last reading.

        Or in the whole history, if that is shorter. Of the histograms that the last page has,
        without those of which there is only one reading.
        """
        grown = {}
        for phase in self._latest:
            edges, window = self._windows[phase]
            if window.seconds and window.growth is not None:
                grown[phase] = HistogramReading(edges, window.growth)
        return grown


def _added(row: Row, other: Row) -> Row:
    return tuple(map(sum, zip_longest(row, other, fillvalue=0.0)))
