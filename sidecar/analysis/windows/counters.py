"""How much an engine's counters and histograms have grown over a sliding window.

They start again at 0 when vLLM does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from math import isnan

from sidecar.analysis.windows.growth import GrowthWindow, subtract
from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading

Counts = tuple[float, ...]


class CounterWindow(GrowthWindow[Counts]):
    """Readings of an engine's counters, which start again at 0 when its vLLM restarts.

    NaN where one is not known.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, subtract)
        self._carried: Counts = ()  # counted before the last restart
        self._known: Counts = ()  # the last value of each counter

    def observe(self, at: float, counters: Counts, *, has_restarted: bool) -> None:
        """Adds a reading.

        With ``has_restarted``, the counters have started again at 0 since the last one.
        """
        if has_restarted:
            self._carried = _sum(self._carried, self._known)
            self._known = ()

        if len(counters) < len(self._known) or any(map(isnan, counters)):
            self._known = tuple(
                old if isnan(new) else new
                for old, new in zip_longest(self._known, counters, fillvalue=0.0)
            )
        else:
            self._known = counters
        self.append(at, _sum(self._carried, counters) if self._carried else counters)


class HistogramWindow:
    """Bounded history of an engine's histograms, which start again at 0 when its vLLM restarts."""

    def __init__(self, seconds: float) -> None:
        """``seconds`` is the length of the window, by the clock that gives ``at``."""
        self._seconds = seconds
        self._buckets: dict[Phase, _Buckets] = {}
        self._latest: Mapping[Phase, HistogramReading] = {}

    def append(
        self, at: float, histograms: Mapping[Phase, HistogramReading], *, has_restarted: bool
    ) -> None:
        """Adds a page's readings.

        Different buckets restart a window, since they come from another vLLM version.
        """
        self._latest = histograms
        if has_restarted:  # a histogram that is not on the page starts again unseen
            self._buckets = {
                phase: buckets for phase, buckets in self._buckets.items() if phase in histograms
            }

        for phase, reading in histograms.items():
            buckets = self._buckets.get(phase)
            if buckets is None or buckets.edges != reading.edges:
                buckets = _Buckets(reading.edges, CounterWindow(self._seconds))
                self._buckets[phase] = buckets
            buckets.window.observe(at, reading.counts, has_restarted=has_restarted)

    @property
    def growth(self) -> dict[Phase, HistogramReading]:
        """The observations in the window that ends at the last reading.

        Or in the whole history, if that is shorter. Of the histograms that the last page has,
        without those of which there is only one reading.
        """
        grown = {}
        for phase in self._latest:
            buckets = self._buckets[phase]
            growth = buckets.window.growth
            if buckets.window.seconds and growth is not None:
                grown[phase] = HistogramReading(buckets.edges, growth)
        return grown


@dataclass(frozen=True, slots=True)
class _Buckets:
    """The counts of one histogram's buckets, over the window."""

    edges: tuple[float, ...]
    window: CounterWindow


def _sum(counts: Counts, others: Counts) -> Counts:
    return tuple(a + b for a, b in zip_longest(counts, others, fillvalue=0.0))
