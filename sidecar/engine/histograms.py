"""One engine's latency histograms over a sliding window, as growth between two readings."""

from collections.abc import Mapping

from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading
from sidecar.engine.window import CounterWindow


class HistogramWindow:
    """Bounded history of an engine's histograms, which start again at 0 when its vLLM restarts."""

    def __init__(self, seconds: float) -> None:
        """``seconds`` is the length of the window, by the clock that gives ``at``."""
        self._seconds = seconds
        self._windows: dict[Phase, tuple[tuple[float, ...], CounterWindow]] = {}  # with the buckets' edges
        self._latest: Mapping[Phase, HistogramReading] = {}

    def append(self, at: float, reading: Mapping[Phase, HistogramReading], *, has_restarted: bool) -> None:
        """Adds a reading; different buckets restart the window, since they come from another vLLM version."""
        self._latest = reading
        if has_restarted:  # a histogram that is not on the page starts again unseen
            self._windows = {phase: window for phase, window in self._windows.items() if phase in reading}
        for phase, one in reading.items():
            if phase not in self._windows or self._windows[phase][0] != one.edges:
                self._windows[phase] = (one.edges, CounterWindow(self._seconds))
            self._windows[phase][1].count(at, one.counts, has_restarted=has_restarted)

    def growth(self, phase: Phase) -> HistogramReading | None:
        """The observations in the window that ends at the last reading, or in the whole history if that is shorter.

        None if vLLM does not export this histogram, or if there is only one reading.
        """
        if phase not in self._latest:
            return None
        edges, window = self._windows[phase]
        growth = window.growth
        return HistogramReading(edges, growth) if window.seconds and growth is not None else None
