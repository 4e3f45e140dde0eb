"""Distributions of observations, and quantiles.

Observations are in fixed buckets since the start, or in narrow bins over a sliding window.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Generic, Protocol, Self, TypeVar

from sidecar.engine.snapshot import HistogramReading


class Summable(Protocol):
    """What can be added and subtracted."""

    def __add__(self, other: Self, /) -> Self: ...
    def __sub__(self, other: Self, /) -> Self: ...


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Summable)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Observations by bucket since the start.

    ``counts[i]`` were at most ``edges[i]``, the last count is all of them. So ``counts`` is one
    longer than ``edges``, which has no +Inf.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """All observations."""
        return self.counts[-1]


class Histogram:
    """Counts by bucket, each bucket's upper edge inclusive; the last bucket takes the rest."""

    __slots__ = ("_counts", "edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        """``edges`` are finite and ascending."""
        self.edges = tuple(edges)
        self.sum = 0.0
        self._counts = [0] * (len(self.edges) + 1)

    def observe(self, *values: float) -> None:
        """Adds observations."""
        for value in values:
            self._counts[bisect_left(self.edges, value)] += 1
        self.sum += sum(values)

    def snapshot(self) -> Distribution:
        """The observations so far."""
        return Distribution(self.edges, tuple(accumulate(self._counts)), self.sum)


# Few edges, since each costs one series per label set. 0.5 and 0.65 are among them, so that "below
# the threshold" is exact with the default thresholds.
ACCEPTANCE_EDGES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0)
WINDOW_EDGES = (0.5, 0.65, 1.0)  # of an engine's windows
USAGE_EDGES = (0.75, 0.9, 1.0)


ACCEPTANCE_BIN: Final = 0.005  # width of an acceptance rate's bin
DURATION_BIN: Final = 1.02  # a duration's bin ends at its start times this
_SHORTEST, _LONGEST = 1e-6, 1e6  # seconds; durations beyond share a bin with these


def acceptance_bin(rate: float) -> int:
    """The bin of an acceptance rate, 0 to 1."""
    return int(rate / ACCEPTANCE_BIN)


def duration_bin(seconds: float) -> int:
    """The bin of a duration, at least 0 seconds."""
    return math.floor(math.log(min(max(seconds, _SHORTEST), _LONGEST), DURATION_BIN))


class Ordered:
    """Values in ascending order, each with how often it occurs; equal ones are stored once."""

    def __init__(self, counts: Sequence[tuple[float, int]]) -> None:
        """``counts`` are ascending values and their counts, at least 1."""
        self.counts = counts
        self._ends = list(accumulate(count for _, count in counts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> float:
        return self.counts[bisect_right(self._ends, index)][0]


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
                sums[key] = sums[key] + value if key in sums else value

    def drop(self, now: float) -> None:
        """Forgets what is older than the window that ends at ``now``."""
        was_set_back = bool(self._slices) and now < self._slices[-1].end
        while self._slices and (was_set_back or self._slices[0].end < now - self._window):
            for key, value in self._slices.popleft().sums.items():
                if left := self.sums[key] - value:
                    self.sums[key] = left
                else:
                    del self.sums[key]


@dataclass(slots=True)
class _Slice(Generic[Key, Value]):
    start: float
    end: float
    sums: dict[Key, Value]


class Recent:
    """The values of a sliding window, in bins.

    A value stands for all of its bin: it is the latest that the bin received. So every quantile is
    within one bin of the exact one, and exact where a bin has a single value.
    """

    def __init__(self, window: float, bin_of: Callable[[float], int]) -> None:
        """``window`` is in seconds; ``bin_of`` never decreases with the value."""
        self._bin_of = bin_of
        self._counts = SlidingSums[int, int](window)
        self._values: dict[int, float] = {}

    def add(self, at: float, values: Sequence[float]) -> None:
        """Adds values of the time ``at``."""
        bins = list(map(self._bin_of, values))
        self._counts.add(at, Counter(bins))
        self._values.update(zip(bins, values, strict=True))

    def drop(self, now: float) -> None:
        """Forgets what is older than the window that ends at ``now``."""
        self._counts.drop(now)

    def ordered(self) -> Ordered:
        """The values of the window that ended at the last ``drop`` or ``add``."""
        return Ordered(
            [(self._values[bin_], count) for bin_, count in sorted(self._counts.sums.items())]
        )


def histogram_quantile(quantile: float, histogram: HistogramReading) -> float | None:
    """The quantile (above 0, at most 1) of a cumulative histogram; None without observations.

    It is in the unit of the histogram's edges. Interpolates linearly within a bucket; edges are
    above 0, and the first bucket starts at 0. If the quantile lies beyond the highest finite edge,
    the result is that edge. The formula is Prometheus's ``bucketQuantile``
    (``promql/quantile.go``), so the results equal those of ``histogram_quantile()`` over the same
    buckets.
    """
    edges, counts = histogram.edges, histogram.counts
    if len(edges) < 2 or counts[-1] <= 0:
        return None

    rank = quantile * counts[-1]
    bucket = bisect_left(counts, rank, hi=len(counts) - 1)
    if bucket == len(counts) - 1:
        return edges[-2]

    start, below = (edges[bucket - 1], counts[bucket - 1]) if bucket else (0.0, 0.0)
    within = counts[bucket] - below
    return start + (edges[bucket] - start) * ((rank - below) / within)


def quantile(ordered: Sequence[float] | Ordered, share: float) -> float | None:
    """The value below which ``share`` (0 to 1) of the ordered values lie; None without values.

    It is interpolated between two of them.
    """
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
