"""Intervals for quantiles and ratios of requests that were measured concurrently, and so not independently.

Requests that share engine steps share their noise. Consecutive completions are therefore cut into batches at least as
long as the number in flight; the variance of the batch means relative to that of single values (the design effect)
shows how many independent requests they are worth.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist, fmean, variance
from typing import Final

from sidecar.analysis.quantile import interpolated

_MOST_BATCHES: Final = 20
LEAST_BATCHES: Final = 4
_LEAST_BEYOND: Final = 1.0  # independent values expected beyond a quantile


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its bounds at the given confidence, or without bounds if there are too few values."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float | None:
        """Half the interval's width."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def moved(self, by: float) -> "Interval":
        """The interval with ``by`` added."""
        if self.low is None or self.high is None:
            return Interval(self.value + by)
        return Interval(self.value + by, self.low + by, self.high + by)


def batches(requests: int, in_flight: float) -> int | None:
    """Into how many batches to cut ``requests`` in the order of their ends; None if too few for any interval."""
    size = max(math.ceil(in_flight), -(-requests // _MOST_BATCHES), 1)
    count = requests // size
    return count if count >= LEAST_BATCHES else None


def by_rounds(requests: int, rounds: int) -> int | None:
    """One batch per round of a sweep; None if there are too few rounds for any interval."""
    return rounds if rounds >= LEAST_BATCHES and requests >= rounds else None


def confidence_factor(confidence: float, degrees: int) -> float:
    """Student's t for a two-sided interval, by Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def design_effect(values: Sequence[float], cut: int) -> float:
    """The variance of their mean as a multiple of that of independent values; at least 1.

    They are ``cut`` into that many batches, with at least one value each.
    """
    size, spread = len(values) // cut, variance(values)
    if spread <= 0:
        return 1.0
    means = [fmean(values[start * size : (start + 1) * size]) for start in range(cut)]
    return max(1.0, size * variance(means) / spread)


def quantile_interval(values: Sequence[float], share: float, cut: int | None, confidence: float) -> Interval | None:
    """A quantile of ``values``, given in the order of the requests' ends; None without values.

    The bounds are order statistics: they hold whatever the distribution.
    """
    if not values:
        return None
    ordered = sorted(values)
    found = Interval(interpolated(ordered, share))
    if cut is None or len(values) < cut:
        return found
    independent = len(values) / design_effect(values, cut)
    if independent * min(share, 1 - share) < _LEAST_BEYOND:
        return found
    wide = confidence_factor(confidence, cut - 1) * math.sqrt(share * (1 - share) / independent)
    if share - wide < 0 or share + wide > 1:
        return found
    return Interval(found.value, interpolated(ordered, share - wide), interpolated(ordered, share + wide))


def ratio_interval(
    above: Sequence[float], below: Sequence[float], cut: int | None, confidence: float
) -> Interval | None:
    """The sum of ``above`` over that of ``below``, one of each per request; None if ``below`` sums to 0."""
    total = sum(below)
    if total <= 0:
        return None
    ratio = sum(above) / total
    if cut is None or len(above) < cut:
        return Interval(ratio)
    rests = [part - ratio * whole for part, whole in zip(above, below, strict=True)]
    error = math.sqrt(sum(rest * rest for rest in rests) * design_effect(rests, cut)) / total
    wide = confidence_factor(confidence, cut - 1) * error
    return Interval(ratio, ratio - wide, ratio + wide)


def relative_change(before: Interval | None, after: Interval | None) -> Interval | None:
    """After / before - 1, with the bounds that follow from both (Zou and Donner's MOVER, to first order)."""
    if before is None or after is None or before.value <= 0 or after.value < 0:
        return None
    ratio = after.value / before.value
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return Interval(ratio - 1)
    down = math.hypot((after.value - after.low) / before.value, ratio * (before.high - before.value) / before.value)
    up = math.hypot((after.high - after.value) / before.value, ratio * (before.value - before.low) / before.value)
    return Interval(ratio - 1, ratio - 1 - down, ratio - 1 + up)


def weighted_quantile(values: Sequence[tuple[float, float]], share: float) -> float | None:
    """The smallest value at or below which ``share`` of the weight lies; ``values`` are (value, weight)."""
    ordered = sorted(values)
    if not ordered:
        return None
    cumulated = list(accumulate(weight for _, weight in ordered))
    return ordered[min(bisect_right(cumulated, share * cumulated[-1]), len(ordered) - 1)][0]
