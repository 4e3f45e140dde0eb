"""KV-cache pressure: the peak usage over a sliding window, and the distribution of the usage."""

from collections import deque

from sidecar.analysis.histogram import USAGE_EDGES, Histogram


class KvCacheUsage:
    """One engine's KV-cache usage, poll by poll, each 0 to 1."""

    def __init__(self, peak_window: float) -> None:
        """``peak_window`` is in the clock's seconds."""
        self._window = peak_window
        self._polls: deque[tuple[float, float]] = deque()
        self.distribution = Histogram(USAGE_EDGES)

    def observe(self, at: float, usage: float) -> None:
        """Adds one poll's usage. If it is not later than the last one, the clock was set back: the window restarts."""
        if self._polls and at <= self._polls[-1][0]:
            self._polls.clear()
        self._polls.append((at, usage))
        while self._polls[0][0] <= at - self._window:
            self._polls.popleft()
        self.distribution.observe(usage)

    def peak(self, now: float) -> float | None:
        """The highest usage in the window that ends at ``now``; None if it has no poll."""
        return max((usage for at, usage in self._polls if at > now - self._window), default=None)
