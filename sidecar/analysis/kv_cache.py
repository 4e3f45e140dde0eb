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
        self._polls: deque[tuple[float, float]] = deque()
        self.distribution = Histogram(USAGE_EDGES)

    def observe(self, at: float, usage: float) -> None:
        """Adds one poll's usage. One not later than the last restarts the history: the clock was set back."""
        if self._polls and at <= self._polls[-1][0]:
            self._polls.clear()
            self._slots.clear()
        self._polls.append((at, usage))
        while self._polls[0][0] <= at - self._window:
            self._polls.popleft()
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
        return max((usage for at, usage in self._polls if at > now - self._window), default=None)
