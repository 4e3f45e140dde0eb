"""The readings of a sliding window, however many polls fall into it."""

from collections import deque
from typing import Final, Generic, TypeVar

_PARTS: Final = 60  # the window's start is known to a sixtieth of its length

T = TypeVar("T")


class Window(Generic[T]):
    """Keeps a bounded number of readings: the latest, and about sixty from the window's start on."""

    def __init__(self, seconds: float) -> None:
        """``seconds`` are the clock's."""
        self._seconds = seconds
        self._kept: deque[tuple[float, T]] = deque()
        self._latest: tuple[float, T] | None = None

    def append(self, at: float, reading: T) -> None:
        """Adds a reading; one that is not later than the last restarts the window, since the clock was set back."""
        if self._latest is not None and at <= self._latest[0]:
            self._kept.clear()
        self._latest = (at, reading)
        if not self._kept or at - self._kept[-1][0] >= self._seconds / _PARTS:
            self._kept.append(self._latest)
        # The oldest one kept is the last at or before the window's start.
        while len(self._kept) > 1 and self._kept[1][0] <= at - self._seconds:
            self._kept.popleft()
