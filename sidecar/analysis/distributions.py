"""Distributions of observations: fixed buckets since the start, narrow bins over a sliding window, quantiles."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from sidecar.engine.snapshot import HistogramReading


@dataclass(frozen=True, slots=True)
class Distribution:
    """Observations by bucket since the start: ``counts[i]`` were at most ``edges[i]``, the last count is all of them.

    So ``counts`` is one longer than ``edges``, which has no +Inf.
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

    def observe(self, value: float) -> None:
        """Adds one observation."""
        self._counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    def snapshot(self) -> Distribution:
        """The observations so far."""
        return Distribution(self.edges, tuple(accumulate(self._counts)), self.sum)


# Few edges, since each costs one series per label set. 0.5 and 0.65 are among them, so that "below the threshold" is
# exact with the default thresholds.
ACCEPTANCE_EDGES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0)
WINDOW_EDGES = (0.5, 0.65, 1.0)  # of an engine's windows
USAGE_EDGES = (0.75, 0.9, 1.0)


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
            self.drop(at)
            self._slices.append(_Slice(at))
        bin_ = self._bin_of(value)
        self._slices[-1].add(at, bin_)
        self._counts[bin_] += 1
        self._values[bin_] = value

    def ordered(self) -> Ordered:
        """The values of the window that ended at the last ``drop`` or ``add``."""
        return Ordered([(self._values[bin_], self._counts[bin_]) for bin_ in sorted(self._counts)])

    def drop(self, now: float) -> None:
        """Forgets what is older than the window that ends at ``now``."""
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


def histogram_quantile(quantile: float, histogram: HistogramReading) -> float | None:
    """The quantile (above 0, at most 1) of a cumulative histogram, in the unit of its edges; None without observations.

    Interpolates linearly within a bucket; edges are above 0, and the first bucket starts at 0. If the quantile lies
    beyond the highest finite edge, the result is that edge. The formula is Prometheus's ``bucketQuantile``
    (``promql/quantile.go``), so the results equal those of ``histogram_quantile()`` over the same buckets.
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
    """The value below which ``share`` (0 to 1) of the ordered values lie, interpolated; None without values."""
    return interpolated(ordered, share) if ordered else None


def interpolated(ordered: Sequence[float] | Ordered, share: float) -> float:
    """Like ``quantile``, for at least one value."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
