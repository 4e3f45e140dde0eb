"""Sums by key over a sliding window."""

import math
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar


class Summable(Protocol):
    """What can be added and subtracted."""

    def __add__(self, other: Self, /) -> Self: ...
    def __sub__(self, other: Self, /) -> Self: ...


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Summable)


class SlidingSums(Generic[Key, Value]):
    """Sums by key over a sliding window.

    The number of keys bounds the memory, whatever the rate. What is added leaves the window with
    the last of its slice, so at most one slice late.
    """

    def __init__(self, window: float, slices: int = 60) -> None:
        """``window`` is in seconds."""
        self._window = window
        self._slice_seconds = window / slices
        self._slices: deque[_Slice[Key, Value]] = deque()  # the oldest first
        # over the window that ended at the last ``drop`` or ``add``
        self.sums: dict[Key, Value] = {}

    def add(self, at: float, growth: Mapping[Key, Value]) -> None:
        """Adds ``growth`` of the time ``at``, none of it 0.

        If the clock was set back, empties the window first.
        """
        latest = self._slices[-1] if self._slices else None
        if latest is None or not latest.end <= at < latest.start + self._slice_seconds:
            self.drop(at)
            latest = _Slice(at, at, {})
            self._slices.append(latest)

        latest.end = at

        for sums in (latest.sums, self.sums):
            for key, value in growth.items():
                known = sums.get(key)
                sums[key] = value if known is None else known + value

    @property
    def since(self) -> float | None:
        """The time of the oldest that is in it; None if it is empty."""
        return self._slices[0].start if self._slices else None

    def drop(self, now: float) -> None:
        """Forgets what is older than the window that ends at ``now``."""
        if self._slices:
            was_set_back = now < self._slices[-1].end
            self.forget(math.inf if was_set_back else now - self._window)

    def forget(self, before: float) -> None:
        """Forgets what is from ``before`` that time."""
        while self._slices and self._slices[0].end < before:
            oldest = self._slices.popleft()
            self._subtract(oldest.sums)

    def _subtract(self, sums: Mapping[Key, Value]) -> None:
        for key, value in sums.items():
            left = self.sums[key] - value
            if left:
                self.sums[key] = left
            else:
                del self.sums[key]


@dataclass(slots=True)
class _Slice(Generic[Key, Value]):
    start: float
    end: float
    sums: dict[Key, Value]
