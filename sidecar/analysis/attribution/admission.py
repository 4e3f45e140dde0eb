"""When vLLM admitted each request to its running batch.

vLLM runs at most m requests at once and admits the others first come, first served. So the k-th request to arrive
(from 0) is admitted when k - m + 1 of those before it have ended: admission(k) = max(arrival(k), end[k - m]), with the
ends in order.
"""

import math
from bisect import bisect_left, bisect_right, insort
from itertools import islice
from typing import Final

from sidecar.analysis.attribution.windows import Interval

_SIMULTANEOUS: Final = 0.1  # seconds within which requests may reach vLLM in a different order than the source saw them
_FINISHED: Final = 4096  # ended requests kept to rank later ones


class Admission:
    """The arrivals and ends of the requests seen, in order."""

    def __init__(self, most_requests: int) -> None:
        self._most = most_requests
        self._in_flight: dict[str, float] = {}  # starts
        self._starts: list[float] = []
        self._ends: list[float] = []

    def __contains__(self, request: str) -> bool:
        return request in self._in_flight

    @property
    def oldest_start(self) -> float | None:
        """When the oldest request in flight began."""
        return next(iter(self._in_flight.values()), None)

    def started(self, request: str, start: float) -> bool:
        """Adds a request; returns whether the oldest one had to be forgotten to stay within bounds."""
        full = len(self._in_flight) >= self._most
        if full:
            self._end(next(iter(self._in_flight)), start)
        self._in_flight[request] = start
        insort(self._starts, start)
        return full

    def finished(self, request: str, start: float, end: float) -> None:
        """Ends a request, whether or not it was seen to start."""
        if request not in self._in_flight:
            insort(self._starts, start)
            self._in_flight[request] = start
        self._end(request, end)

    def forget_before(self, at: float) -> bool:
        """Ends the oldest request if it began before ``at``: its source died, so no end will be seen."""
        oldest = next(iter(self._in_flight.items()), None)
        if oldest is None or oldest[1] >= at:
            return False
        self._end(oldest[0], at)
        return True

    def forget(self, request: str) -> None:
        """Removes a request without an end."""
        start = self._in_flight.pop(request)
        del self._starts[bisect_left(self._starts, start)]

    def admitted(self, start: float, limit: int | None) -> tuple[float, float]:
        """When the request that arrived at ``start`` was admitted, and by how many seconds that may be off.

        ``limit`` is m; None if no request waits. The uncertainty comes from the order of nearly simultaneous arrivals.
        """
        if limit is None:
            return start, 0.0
        first = bisect_left(self._starts, start - _SIMULTANEOUS)
        last = bisect_right(self._starts, start + _SIMULTANEOUS) - 1
        earliest, latest = self._free_place(first - limit), self._free_place(last - limit)
        at = max(self._free_place(bisect_left(self._starts, start) - limit), start)
        return at, max(latest - max(earliest, start - _SIMULTANEOUS) - 2 * _SIMULTANEOUS, 0.0)

    def in_flight(self, at: float) -> int:
        """How many requests were in flight at a moment."""
        return bisect_right(self._starts, at) - bisect_right(self._ends, at)

    def occupancy(self, start: float, end: float) -> tuple[float, tuple[Interval, ...]]:
        """The mean number of requests in flight over a period, and the parts of the period with any."""
        begun, ended = bisect_right(self._starts, start), bisect_right(self._ends, start)
        changes = [(at, 1) for at in islice(self._starts, begun, bisect_right(self._starts, end))]
        changes += [(at, -1) for at in islice(self._ends, ended, bisect_right(self._ends, end))]
        number, total, since = self.in_flight(start), 0.0, start
        busy: list[Interval] = []
        for at, change in [*sorted(changes), (end, 0)]:
            if number > 0 and at > since:
                total += number * (at - since)
                joined = bool(busy) and busy[-1][1] == since
                busy[-1:] = [(busy[-1][0], at)] if joined else [*busy[-1:], (since, at)]
            number, since = number + change, at
        return total / (end - start), tuple(busy)

    def _free_place(self, index: int) -> float:
        if index < 0:
            return -math.inf
        return self._ends[index] if index < len(self._ends) else math.inf

    def _end(self, request: str, end: float) -> None:
        del self._in_flight[request]
        insort(self._ends, end)
        if len(self._ends) > 2 * _FINISHED:
            del self._starts[:_FINISHED], self._ends[:_FINISHED]
