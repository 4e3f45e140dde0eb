"""One phase's latency over a window, by the requests' own times or from vLLM's histogram of it.

vLLM's buckets are wide: from 10 to 25 ms per token, for example. Which of them a quantile is in is
certain, and where in it is not. So a quantile has a range: the bucket, or the value itself where
the plug-in tells every request's own time.
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
    """Between which a value certainly is; ``most`` is infinite in a histogram's last bucket."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Latency:
    """One phase's latency over a window, in seconds, of ``count`` requests or observations.

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
        """Between what P99 - P50 certainly is: from 0 where both are in one bucket."""
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


def own_latency(times: Ordered, histogram: HistogramReading, tolerance: float) -> Latency | None:
    """The latency by the requests' own times, as vLLM's histogram of the same requests is refined.

    None if the two contradict each other although at most the share ``tolerance`` of the requests
    is in only one of them.
    """
    quantiles = {}
    for quantile in QUANTILES:
        value = times[max(math.ceil(quantile * len(times)), 1) - 1]
        possible = bucket_range(histogram, quantile, tolerance)
        if not possible.least * (1 - _ROUNDING) <= value <= possible.most * (1 + _ROUNDING):
            return None
        quantiles[quantile] = value

    ranges = {quantile: Range(value, value) for quantile, value in quantiles.items()}
    return Latency(quantiles, len(times), ranges, histogram.edges, Source.REQUESTS)


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
    """Between what the difference of the two certainly is."""
    return Range(max(tail.least - median.most, 0.0), tail.most - median.least)


def baseline_gap(baseline: PlainLatency | None, edges: Sequence[float]) -> Range | None:
    """Between what the baseline's P99 - P50 certainly is; None if that is not known.

    ``edges`` are those of vLLM's buckets, in which its quantiles are unless they are exact.
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
