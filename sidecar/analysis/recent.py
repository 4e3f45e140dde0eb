"""Quantiles over a sliding window at any rate: the values are counted in narrow bins, by slices of the window."""

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, overload

_SLICES: Final = 60
ACCEPTANCE_BIN: Final = 0.005  # width of an acceptance rate's bin
DURATION_BIN: Final = 1.02  # a duration's bin ends at its start times this
_SHORTEST, _LONGEST = 1e-6, 1e6  # seconds; durations beyond share a bin with these


def acceptance_bin(rate: float) -> int:
    """The bin of an acceptance rate, 0 to 1."""
    return int(rate / ACCEPTANCE_BIN)


def duration_bin(seconds: float) -> int:
    """The bin of a duration, at least 0 seconds."""
    return math.floor(math.log(min(max(seconds, _SHORTEST), _LONGEST), DURATION_BIN))


class Ordered(Sequence[float]):
    """Values in ascending order, each with how often it occurs; equal ones are stored once."""

    def __init__(self, counts: Sequence[tuple[float, int]]) -> None:
        """``counts`` are ascending values and their counts, at least 1."""
        self.counts = counts
        self._ends = list(accumulate(count for _, count in counts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self.counts[bisect_right(self._ends, index)][0]


class Recent:
    """The values of a sliding window. Memory is bounded by the number of bins, whatever the rate.

    A value stands for all of its bin: it is the latest that the bin received. So every quantile is within one bin of
    the exact one, and exact where a bin has a single value. A value leaves the window with the last of its slice, at
    most a sixtieth of the window late.
    """

    def __init__(self, window: float, bin_of: Callable[[float], int]) -> None:
        """``window`` is in seconds; ``bin_of`` never decreases with the value."""
        self._window = window
        self._bin_of = bin_of
        self._slices: deque[_Slice] = deque()
        self._counts: Counter[int] = Counter()
        self._values: dict[int, float] = {}

    def add(self, at: float, value: float) -> None:
        """Adds a value of the time ``at``. After a clock was set back, the values before are of no window."""
        if not self._slices or not self._slices[-1].takes(at, self._window / _SLICES):
            self._forget(at)
            self._slices.append(_Slice(at))
        bin_ = self._bin_of(value)
        self._slices[-1].add(at, bin_)
        self._counts[bin_] += 1
        self._values[bin_] = value

    def ordered(self, now: float) -> Ordered:
        """The window's values at ``now``."""
        self._forget(now)
        return Ordered([(self._values[bin_], self._counts[bin_]) for bin_ in sorted(self._counts)])

    def _forget(self, now: float) -> None:
        was_set_back = bool(self._slices) and now < self._slices[-1].end
        while self._slices and (was_set_back or self._slices[0].end < now - self._window):
            self._counts -= self._slices.popleft().counts  # drops what becomes 0
        if len(self._values) > len(self._counts):
            self._values = {bin_: self._values[bin_] for bin_ in self._counts}


class _Slice:
    __slots__ = ("counts", "end", "start")

    def __init__(self, at: float) -> None:
        self.start = self.end = at
        self.counts: Counter[int] = Counter()

    def takes(self, at: float, seconds: float) -> bool:
        return self.end <= at < self.start + seconds

    def add(self, at: float, bin_: int) -> None:
        self.end = at
        self.counts[bin_] += 1
