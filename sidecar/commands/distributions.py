"""Tails of distributions that tests compare with."""

import math
from typing import Final

_PRECISE: Final = 1e-14
_MOST_TERMS: Final = 100_000


def chi_square_tail(square: float, freedom: float) -> float:
    """The chance of a chi-square of ``square`` or more with so many degrees of freedom.

    It is the regularized upper incomplete gamma function of half of both: by its series below the
    distribution's mean, by its continued fraction above (Abramowitz and Stegun, 6.5.29 and 6.5.31).
    """
    if square <= 0:
        return 1.0

    shape = freedom / 2
    half = square / 2
    scale = math.exp(shape * math.log(half) - half - math.lgamma(shape))
    if half < shape + 1:
        return 1 - scale * _series(shape, half)
    return scale * _fraction(shape, half)


def chi_square_quantile(tail: float, freedom: float) -> float:
    """The chi-square that is exceeded with a chance of ``tail``, above 0 and below 1."""
    low = 0.0
    high = freedom + 10.0
    while chi_square_tail(high, freedom) > tail:
        high *= 2

    for _ in range(100):
        middle = (low + high) / 2
        if chi_square_tail(middle, freedom) > tail:
            low = middle
        else:
            high = middle

    return high


def _series(shape: float, half: float) -> float:
    """The sum over n of half^n / (shape (shape + 1) … (shape + n))."""
    term = 1 / shape
    found = term
    for number in range(1, _MOST_TERMS):
        term *= half / (shape + number)
        found += term
        if term < found * _PRECISE:
            break

    return found


def _fraction(shape: float, half: float) -> float:
    """1 / (half + 1 - shape - 1 (1 - shape) / (half + 3 - shape - …)), by Lentz's algorithm."""
    tiny = 1e-300
    denominator = half + 1 - shape
    c = 1 / tiny
    d = 1 / denominator
    found = d
    for number in range(1, _MOST_TERMS):
        numerator = -number * (number - shape)
        denominator += 2
        d = 1 / _away_from_zero(numerator * d + denominator, tiny)
        c = _away_from_zero(denominator + numerator / c, tiny)
        factor = c * d
        found *= factor
        if abs(factor - 1) < _PRECISE:
            break

    return found


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
