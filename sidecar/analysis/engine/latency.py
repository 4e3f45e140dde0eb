"""One phase's latency over a window, from vLLM's histogram of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.analysis.distributions import histogram_quantile
from sidecar.engine.snapshot import HistogramReading

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Latency:
    """One phase's latency over a window.

    ``quantiles`` are in seconds, by quantile, over ``count`` observations. Below ``resolution``,
    the upper edge of the first bucket in seconds, a quantile is mere interpolation.
    """

    quantiles: Mapping[float, float]
    count: float
    resolution: float = 0.0

    @property
    def gap_seconds(self) -> float | None:
        """P99 - P50; None if both are in the first bucket."""
        if self.quantiles[0.99] >= self.resolution:
            return self.quantiles[0.99] - self.quantiles[0.5]
        return None

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
    return Latency(known, histogram.count, histogram.edges[0])


def gap_growth(now: Latency, baseline: Mapping[float, float]) -> float | None:
    """The gap P99 - P50 as a multiple of the baseline's; None if either is unknown."""
    if now.gap_seconds is None or not baseline.keys() >= {0.5, 0.99}:
        return None
    if baseline[0.99] <= baseline[0.5]:
        return None
    return now.gap_seconds / (baseline[0.99] - baseline[0.5])
