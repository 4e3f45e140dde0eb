"""Quantiles: of bucketed observations, as Prometheus computes them, and of single values."""

import math
from bisect import bisect_left
from collections.abc import Sequence

from sidecar.engine.snapshot import HistogramReading


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


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` (0 to 1) of the ordered values lie, interpolated; None without values."""
    return interpolated(ordered, share) if ordered else None


def interpolated(ordered: Sequence[float], share: float) -> float:
    """Like ``quantile``, for at least one value."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
