"""KV-cache pressure: the peak between two looks, and how usage is distributed over time."""

from collections import deque

from sidecar.analysis.distribution import USAGE_EDGES, Distribution


class KvCacheUsage:
    """One engine's KV-cache usage, poll by poll, each 0 to 1."""

    def __init__(self, peak_window: float) -> None:
        """``peak_window`` is in the clock's seconds."""
        self._window = peak_window
        # Falling values only: what is older and lower than a newer one can't be the peak any more.
        self._peaks: deque[tuple[float, float]] = deque()
        self.distribution = Distribution(USAGE_EDGES)

    def observe(self, at: float, usage: float) -> None:
        """Adds one poll's usage. One that is not later than the last ends the peak: the clock was set back."""
        if self._peaks and at <= self._peaks[-1][0]:
            self._peaks.clear()
        while self._peaks and self._peaks[-1][1] <= usage:
            self._peaks.pop()
        self._peaks.append((at, usage))
        self._drop(at - self._window)
        self.distribution.observe(usage)

    def peak(self, now: float) -> float | None:
        """The highest usage of the window that ends at ``now``; None where no poll is in it."""
        self._drop(now - self._window)
        return self._peaks[0][1] if self._peaks else None

    def _drop(self, until: float) -> None:
        while self._peaks and self._peaks[0][0] <= until:
            self._peaks.popleft()
