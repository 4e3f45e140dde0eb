"""One engine's latency histograms over a sliding window, as growth between two readings."""

from collections.abc import Mapping

from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading
from sidecar.engine.window import GrowthWindow


class HistogramWindow:
    """Bounded history of continued histograms (``Continuation``)."""

    def __init__(self, seconds: float) -> None:
        """``seconds`` is the length of the window, by the clock that gives ``at``."""
        self._seconds = seconds
        self._windows: dict[Phase, tuple[tuple[float, ...], GrowthWindow]] = {}  # with the buckets' edges
        self._latest: Mapping[Phase, HistogramReading] = {}

    def append(self, at: float, reading: Mapping[Phase, HistogramReading]) -> None:
        """Adds a reading; different buckets restart the window, since they come from another vLLM version."""
        self._latest = reading
        for phase, one in reading.items():
            if phase not in self._windows or self._windows[phase][0] != one.edges:
                self._windows[phase] = (one.edges, GrowthWindow(self._seconds))
            self._windows[phase][1].append(at, one.counts)

    def growth(self, phase: Phase) -> HistogramReading | None:
        """The observations in the window that ends at the last reading, or in the whole history if that is shorter.

        None if vLLM does not export this histogram, or if there is only one reading.
        """
        if phase not in self._latest:
            return None
        edges, window = self._windows[phase]
        return HistogramReading(edges, window.growth) if window.seconds else None
