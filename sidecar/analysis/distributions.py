"""Distributions of observations in fixed buckets, and quantiles."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sidecar.analysis.windows.recent import Ordered
from sidecar.engine.snapshot import HistogramReading


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


def histogram_quantile(quantile: float, histogram: HistogramReading) -> float | None:
    """The quantile (above 0, at most 1) of a cumulative histogram; None without observations.

    It is in the unit of the histogram's edges. Interpolates linearly within a bucket; edges are
    above 0, and the first bucket starts at 0. If the quantile lies beyond the highest finite edge,
    the result is that edge. The formula is Prometheus's ``bucketQuantile``
    (``promql/quantile.go``), so the results equal those of ``histogram_quantile()`` over the same
    buckets.
    """
    edges = histogram.edges
    counts = histogram.counts
    if len(edges) < 2 or counts[-1] <= 0:
        return None

    rank = quantile * counts[-1]
    bucket = bisect_left(counts, rank, hi=len(counts) - 1)
    if bucket == len(counts) - 1:
        return edges[-2]

    start = edges[bucket - 1] if bucket else 0.0
    below = counts[bucket - 1] if bucket else 0.0
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
