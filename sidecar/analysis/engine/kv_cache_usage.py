"""One engine's KV-cache usage: its highest of the last polls, and its distribution."""

from collections import deque
from typing import NamedTuple

from sidecar.analysis.distributions import USAGE_EDGES, Histogram


class _Poll(NamedTuple):
    at: float
    usage: float


class KvCacheUsage:
    """One engine's KV-cache usage, poll by poll, each 0 to 1."""

    def __init__(self, peak_window: float) -> None:
        """``peak_window`` is in the clock's seconds."""
        self._window = peak_window
        self._polls: deque[_Poll] = deque()
        self.distribution = Histogram(USAGE_EDGES)

    def observe(self, at: float, usage: float) -> None:
        """Adds one poll's usage.

        If the poll is not later than the last one, the clock was set back: the window restarts.
        """
        if self._polls and at <= self._polls[-1].at:
            self._polls.clear()

        self._polls.append(_Poll(at, usage))
        while self._polls[0].at <= at - self._window:
            self._polls.popleft()

        self.distribution.observe(usage)

    def peak(self, now: float) -> float | None:
        """The highest usage in the window that ends at ``now``; None if it has no poll."""
        recent = [poll.usage for poll in self._polls if poll.at > now - self._window]
        return max(recent, default=None)
