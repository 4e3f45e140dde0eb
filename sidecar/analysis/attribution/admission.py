"""When vLLM took a request up, for those whose first token no one saw.

vLLM runs a bounded number of requests at once and takes up the others in the order of their arrival, one whenever
another ends. Those ends are seen, so once the bound is known the waiting time of every request follows.
"""

import math
from bisect import bisect_left
from collections import deque
from typing import Final

_MOST_REQUESTS: Final = 20_000
_AT_ONCE: Final = 0.1  # seconds
_LOG: Final = 4096  # starts and ends remembered, to see once the bound is known who had to wait


class Admission:
    """The requests in flight, in vLLM's order. ``limit`` is how many run at once; None: all of them."""

    def __init__(self, most: int = _MOST_REQUESTS) -> None:
        self._most = most
        self._order: deque[tuple[float, str]] = deque()  # starts of those in ``_taken`` and of those that wait
        self._taken: dict[str, float] = {}
        self._log: deque[tuple[float, str, bool]] = deque(maxlen=_LOG)  # time, request, whether it started
        self._limit: int | None = None
        self._starts: dict[str, float] = {}
        self._running: dict[str, float] = {}  # when it was taken up; the latest is the last
        self._waiting: deque[str] = deque()

    @property
    def oldest_start(self) -> float | None:
        """When the request that has been in flight for longest began."""
        return next(iter(self._starts.values()), None)

    @property
    def starts(self) -> list[float]:
        """When each request in flight began."""
        return list(self._starts.values())

    def __contains__(self, name: str) -> bool:
        return name in self._starts

    def limit_to(self, limit: int | None) -> dict[str, float]:
        """Sets how many run at once, and corrects what was thought so far as the log reaches back.

        Returns when the requests that have ended since were taken up.
        """
        self._limit = limit
        known, log = dict(self._starts), list(self._log)
        self._starts, self._running, self._waiting = {}, {}, deque()
        self._order.clear()
        self._taken.clear()
        logged = {name for _, name, begins in log if begins}
        for name, start in known.items():
            if name not in logged:
                self._start(name, start)
        taken: dict[str, float] = {}
        for at, name, begins in log:
            if begins:
                self._start(name, at)
            elif name in self._starts:
                taken[name] = self._finish(name, at)
        return taken

    def started(self, name: str, start: float) -> str | None:
        """Adds a request; returns the oldest one where that had to be forgotten to stay within bounds."""
        dropped = None
        if len(self._starts) >= self._most:
            dropped = next(iter(self._starts))
            self.forget(dropped, start)
        self._log.append((start, name, True))
        self._start(name, start)
        return dropped

    def finished(self, name: str, start: float, end: float) -> float:
        """Removes a request that ended; returns when it was taken up, ``start`` where that is not known."""
        if name not in self._starts:
            return start
        self._log.append((end, name, False))
        return max(self._finish(name, end), start)

    def doubt(self, start: float) -> float:
        """How far off the waiting time of a request that began at ``start`` may be, in seconds; at most infinite.

        Requests that begin all but at once may reach vLLM in another order than they were seen in.
        """
        if self._limit is None:
            return 0.0
        first = bisect_left(self._order, (start - _AT_ONCE, ""))
        low, high = math.inf, -math.inf
        for index in range(first, len(self._order)):
            began, name = self._order[index]
            if began > start + _AT_ONCE:
                break
            taken = self._taken.get(name, math.inf)
            low, high = min(low, taken), max(high, taken)
        return max(high - low - 2 * _AT_ONCE, 0.0) if low < math.inf else 0.0

    def _start(self, name: str, start: float) -> None:
        self._starts[name] = start
        if self._limit is not None:
            self._order.append((start, name))
            while len(self._order) > _LOG:
                self._taken.pop(self._order.popleft()[1], None)
        self._waiting.append(name)
        self._take_up(start)

    def _finish(self, name: str, end: float) -> float:
        if name not in self._running and self._running:
            # It ran after all: two that came at once were taken up in the other order.
            other, taken = self._running.popitem()
            self._waiting.remove(name)
            self._waiting.appendleft(other)
            self._running[name] = taken
            if self._limit is not None:
                self._taken[name] = self._taken.pop(other, taken)
        taken = self._running.get(name, self._starts[name])
        self.forget(name, end)
        return taken

    def forget_before(self, at: float) -> bool:
        """Removes the oldest request if it began before ``at``: its source died, so it will never end."""
        oldest = next(iter(self._starts.items()), None)
        if oldest is None or oldest[1] >= at:
            return False
        self.forget(oldest[0], at)
        return True

    def forget(self, name: str, at: float) -> None:
        """Removes a request without asking when it was taken up."""
        if self._starts.pop(name, None) is None:
            return
        if self._running.pop(name, None) is None:
            self._waiting.remove(name)
        self._take_up(at)

    def _take_up(self, at: float) -> None:
        while self._waiting and (self._limit is None or len(self._running) < self._limit):
            name = self._waiting.popleft()
            self._running[name] = max(at, self._starts[name])
            if self._limit is not None:
                self._taken[name] = self._running[name]
