"""One phase's latency over a window, by the requests' own times or from vLLM's histogram of it.

vLLM's buckets are wide: from 10 to 25 ms per token, for example. Which of them a quantile is in is
certain, and where in it is not. So a quantile has a range: the bucket or, where the plug-in tells
the requests' own times, what it can be with those that are missing: the value itself without any.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.analysis.distributions import histogram_quantile
from sidecar.analysis.windows.recent import Ordered
from sidecar.engine.snapshot import HistogramReading
from sidecar.settings.baselines import PlainLatency

QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)


class Source(StrEnum):
    """Where quantiles are from."""

    REQUESTS = "requests"  # each finished request's own time, as the plug-in tells it
    BUCKETS = "buckets"  # vLLM's own histogram


class Range(NamedTuple):
    """Between which a value is; ``most`` is infinite in a histogram's last bucket.

    By bucket it is certain. By the requests' own times it is to within their bins, 0.5 %, and for
    the requests that were told within the window: vLLM counted them up to a second earlier.
    """

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Latency:
    """One phase's latency over a window, in seconds.

    ``count`` is by ``source``: the requests that were told, or the observations in vLLM's buckets.

    ``quantiles`` and ``ranges`` are by quantile. From buckets, a quantile is interpolated in its
    range. ``edges`` are those of vLLM's buckets.
    """

    quantiles: Mapping[float, float]
    count: float
    ranges: Mapping[float, Range]
    edges: tuple[float, ...] = ()
    source: Source = Source.BUCKETS

    @property
    def is_exact(self) -> bool:
        """Whether it is by the requests' own times."""
        return self.source is Source.REQUESTS

    @property
    def gap_seconds(self) -> float | None:
        """P99 - P50; None if both are in vLLM's first bucket."""
        tail = self.ranges[0.99]
        if not self.is_exact and tail.least == 0 and tail == self.ranges[0.5]:
            return None
        return self.quantiles[0.99] - self.quantiles[0.5]

    @property
    def gap_range(self) -> Range:
        """Between what P99 - P50 is: from 0 where both are in one bucket."""
        return gap_range(self.ranges[0.5], self.ranges[0.99])

    @property
    def gap_ratio(self) -> float | None:
        """P99 / P50; also None if the median is 0.

        TPOT's median is 0 if most responses have one token.
        """
        if self.gap_seconds is None or not self.quantiles[0.5]:
            return None
        return self.quantiles[0.99] / self.quantiles[0.5]


def latency(histogram: HistogramReading) -> Latency | None:
    """The latency from a histogram's growth over a window; None without observations."""
    quantiles = {quantile: histogram_quantile(quantile, histogram) for quantile in QUANTILES}
    known = {quantile: value for quantile, value in quantiles.items() if value is not None}
    if len(known) < len(QUANTILES):
        return None

    ranges = {quantile: bucket_range(histogram, quantile) for quantile in QUANTILES}
    return Latency(known, histogram.count, ranges, histogram.edges)


def own_latency(
    times: Ordered, histogram: HistogramReading, missing: int, others: float
) -> Latency:
    """The latency by the requests' own ``times``, of which there are some.

    So many are ``missing``, or too many; ``histogram`` has these and the missing ones. ``others``
    is the share of it that is of requests whose latency this is not.
    """
    places = {quantile: _place(times, quantile) for quantile in QUANTILES}
    ranges = {}
    for quantile, place in places.items():
        bucket = bucket_range(histogram, quantile, others)
        low, high = place - missing, place + missing
        ranges[quantile] = Range(
            times[low] if low >= 0 else min(bucket.least, times[0]),
            times[high] if high < len(times) else max(bucket.most, times[place]),
        )

    quantiles = {quantile: times[place] for quantile, place in places.items()}
    return Latency(quantiles, len(times), ranges, histogram.edges, Source.REQUESTS)


def contradicts(times: Ordered, histogram: HistogramReading, tolerance: float) -> bool:
    """Whether a quantile of ``times`` is not in vLLM's bucket for it.

    Nor in one that is within ``tolerance`` of it, a share of the requests.
    """
    for quantile in QUANTILES:
        value = times[_place(times, quantile)]
        possible = bucket_range(histogram, quantile, tolerance)
        if not possible.least * (1 - _ROUNDING) <= value <= possible.most * (1 + _ROUNDING):
            return True
    return False


def _place(times: Ordered, quantile: float) -> int:
    return max(math.ceil(quantile * len(times)), 1) - 1


_ROUNDING: Final = 0.005  # of a time, in its bin


def bucket_range(histogram: HistogramReading, quantile: float, tolerance: float = 0.0) -> Range:
    """The bucket in which a quantile is, or all that are within ``tolerance`` of it.

    Needs observations.
    """
    total = histogram.counts[-1]
    first = _bucket(histogram.counts, max(quantile - tolerance, 0.0) * total)
    end = _bucket(histogram.counts, min(quantile + tolerance, 1.0) * total)
    least = histogram.edges[first - 1] if first else 0.0
    return Range(least, histogram.edges[end])


def _bucket(counts: Sequence[float], rank: float) -> int:
    return next(place for place, count in enumerate(counts) if count >= rank)


def gap_range(median: Range, tail: Range) -> Range:
    """Between what the difference of the two is."""
    return Range(max(tail.least - median.most, 0.0), tail.most - median.least)


def baseline_gap(baseline: PlainLatency | None, edges: Sequence[float]) -> Range | None:
    """Between what the baseline's P99 - P50 is; None if that is not known.

    By requests' own times it is taken as it was measured. ``edges`` are those of vLLM's buckets, in
    which its quantiles are otherwise.
    """
    if baseline is None or not baseline.quantiles.keys() >= {0.5, 0.99}:
        return None
    if not (baseline.is_exact or edges):
        return None
    ranges = [_value_range(baseline.quantiles[one], baseline, edges) for one in (0.5, 0.99)]
    return gap_range(*ranges)


def _value_range(value: float, baseline: PlainLatency, edges: Sequence[float]) -> Range:
    """Where a quantile of the baseline can be."""
    if baseline.is_exact:
        return Range(value, value)
    least = max((edge for edge in edges if edge < value), default=0.0)
    return Range(least, min((edge for edge in edges if edge >= value), default=math.inf))


def gap_growth(now: Latency, baseline: PlainLatency | None) -> float | None:
    """How many times the baseline's gap P99 - P50 it is at least; None if unknown."""
    before = baseline_gap(baseline, now.edges)
    if before is None or not 0 < before.most < math.inf:
        return None
    return now.gap_range.least / before.most
