"""One engine's latency histograms over a sliding window, as growth between two readings."""

from collections import deque
from collections.abc import Mapping

from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading

_READINGS = 60  # per window: its start is known to a sixtieth of its length


class HistogramWindow:
    """Bounded history of continued histograms (``Continuation``); times must increase."""

    def __init__(self, window: float) -> None:
        """``window`` is in the clock's seconds."""
        self._window = window
        self._kept: deque[tuple[float, Mapping[Phase, HistogramReading]]] = deque()
        self._latest: tuple[float, Mapping[Phase, HistogramReading]] | None = None

    def append(self, at: float, histograms: Mapping[Phase, HistogramReading]) -> None:
        """Adds a reading.

        A reading that is not later than the last restarts the history, since the clock was set back. So does one with
        other buckets, since another vLLM version was started.
        """
        if self._latest is not None and (at <= self._latest[0] or _other_buckets(self._latest[1], histograms)):
            self._kept.clear()
        self._latest = (at, histograms)
        if not self._kept or at - self._kept[-1][0] >= self._window / _READINGS:
            self._kept.append(self._latest)
        # The oldest one kept is the last at or before the window's start.
        while len(self._kept) > 1 and self._kept[1][0] <= at - self._window:
            self._kept.popleft()

    def growth(self, phase: Phase) -> HistogramReading | None:
        """The observations in the window that ends at the last reading.

        The window is shorter if the history is. None if vLLM does not export this histogram, if there is only one
        reading, or if the buckets changed while the histogram was absent.
        """
        if self._latest is None or phase not in self._latest[1]:
            return None
        now = self._latest[1][phase]
        first = next((histograms for at, histograms in self._kept if phase in histograms), None)
        if first is None or first is self._latest[1] or first[phase].edges != now.edges:
            return None
        before = first[phase]
        counts = tuple(new - old for new, old in zip(now.counts, before.counts, strict=True))
        return HistogramReading(now.edges, counts)


def _other_buckets(before: Mapping[Phase, HistogramReading], now: Mapping[Phase, HistogramReading]) -> bool:
    return any(phase in before and before[phase].edges != reading.edges for phase, reading in now.items())
