"""One engine's latency histograms over a sliding window, as growth between two readings."""

from collections.abc import Mapping

from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading
from sidecar.engine.window import Window


class HistogramWindow(Window[Mapping[Phase, HistogramReading]]):
    """Bounded history of continued histograms (``Continuation``)."""

    def append(self, at: float, reading: Mapping[Phase, HistogramReading]) -> None:
        """Adds a reading; one with other buckets also restarts the window, since another vLLM version was started."""
        if self._latest is not None and _other_buckets(self._latest[1], reading):
            self._kept.clear()
        super().append(at, reading)

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
