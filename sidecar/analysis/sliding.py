"""A sliding window kept in parts, so that its memory does not depend on the traffic."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SlidingParts(Generic[T]):
    """Parts of the last ``seconds``; each collects what comes within ``part`` seconds of its beginning."""

    def __init__(self, seconds: float, part: float, new: Callable[[], T]) -> None:
        self._seconds = seconds
        self._part = part
        self._new = new
        self._parts: deque[tuple[float, T]] = deque()  # with its beginning

    def current(self, at: float) -> T:
        """The part that collects what comes at ``at``."""
        self._forget(at)
        if not self._parts or at - self._parts[-1][0] >= self._part:
            self._parts.append((at, self._new()))
        return self._parts[-1][1]

    def read(self, now: float) -> list[T]:
        """The parts of the window that ends at ``now``, oldest first."""
        self._forget(now)
        return [part for _, part in self._parts]

    def _forget(self, now: float) -> None:
        # A part that begins after now was added before the clock was set back.
        while self._parts and not now - self._seconds <= self._parts[0][0] <= now:
            self._parts.popleft()
