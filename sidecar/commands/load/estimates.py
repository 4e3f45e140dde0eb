"""Estimates and their errors from requests that ran concurrently and so are not independent.

Requests that share engine steps share their noise. Consecutive completions are therefore cut into batches of at least
the number in flight, and the error of the whole follows from the scatter between the batches (batch means).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist, stdev
from typing import Final

LEAST_BATCHES: Final = 4
_MOST_BATCHES: Final = 20


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and half the width of its confidence interval; ``error`` is None if there are too few values."""

    value: float
    error: float | None = None

    @property
    def high(self) -> float | None:
        """The upper bound."""
        return None if self.error is None else self.value + self.error


def batches(requests: int, in_flight: float, share: float | None = None) -> int | None:
    """The number of batches to cut ``requests`` into, in the order of their ends; None if too few for an error.

    Each batch is large enough for the quantile ``share``, if a quantile is estimated.
    """
    size = max(math.ceil(in_flight), -(-requests // _MOST_BATCHES), least_size(share))
    count = requests // size
    return count if count >= LEAST_BATCHES else None


def least_size(share: float | None) -> int:
    """The smallest batch with, on average, two values beyond the quantile ``share``; 1 if it is not for a quantile.

    The quantiles of smaller batches are less extreme and scatter too little to give the error of the whole.
    """
    return 1 if share is None else math.ceil(round(2 / min(share, 1 - share), 6))


def confidence_factor(confidence: float, degrees: int) -> float:
    """Student's t for a two-sided interval, by the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def estimate(whole: float | None, parts: Iterable[float | None], confidence: float) -> Interval | None:
    """``whole`` with the error that follows from the batches' own values, ``parts``; None if it is unknown."""
    if whole is None:
        return None
    known = [part for part in parts if part is not None]
    if len(known) < LEAST_BATCHES:
        return Interval(whole)
    return Interval(whole, confidence_factor(confidence, len(known) - 1) * stdev(known) / math.sqrt(len(known)))


def relative_change(before: Interval | None, after: Interval | None) -> Interval | None:
    """After / before - 1, with the error that follows from both, to first order."""
    if before is None or after is None or before.value <= 0 or after.value < 0:
        return None
    ratio = after.value / before.value
    if before.error is None or after.error is None:
        return Interval(ratio - 1)
    return Interval(ratio - 1, math.hypot(after.error, ratio * before.error) / before.value)
