"""KV-cache pressure: the peak of the last minute, and the usage over time."""

from collections import deque

from sidecar.analysis.histogram import USAGE_EDGES, Histogram

_SLOTS = 60


class KvCacheUsage:
    """One engine's KV-cache usage, poll by poll, each 0 to 1."""

    def __init__(self, peak_window: float, history: float) -> None:
        """``peak_window`` and ``history`` are in the clock's seconds."""
        self._window = peak_window
        self._history = history
        self._slots: deque[tuple[float, float]] = deque()
        # Values in falling order: an older value below a newer one can no longer be the peak.
        self._peaks: deque[tuple[float, float]] = deque()
        self.distribution = Histogram(USAGE_EDGES)

    def observe(self, at: float, usage: float) -> None:
        """Adds one poll's usage. One not later than the last restarts the history: the clock was set back."""
        if self._peaks and at <= self._peaks[-1][0]:
            self._peaks.clear()
            self._slots.clear()
        while self._peaks and self._peaks[-1][1] <= usage:
            self._peaks.pop()
        self._peaks.append((at, usage))
        self._drop(at - self._window)
        self.distribution.observe(usage)
        if self._slots and at - self._slots[-1][0] < self._history / _SLOTS:
            begun, highest = self._slots[-1]
            self._slots[-1] = (begun, max(highest, usage))
        else:
            self._slots.append((at, usage))
        while self._slots[0][0] < at - self._history or len(self._slots) > 2 * _SLOTS:
            self._slots.popleft()

    def history(self) -> tuple[tuple[float, float], ...]:
        """The highest usage of each of about sixty slices of time, with its start; oldest first."""
        return tuple(self._slots)

    def peak(self, now: float) -> float | None:
        """The highest usage in the window that ends at ``now``; None if it has no poll."""
        self._drop(now - self._window)
        return self._peaks[0][1] if self._peaks else None

    def _drop(self, until: float) -> None:
        while self._peaks and self._peaks[0][0] <= until:
            self._peaks.popleft()
