"""Tails and quantiles of distributions that tests compare with."""

import math
from statistics import NormalDist
from typing import Final

_PRECISE: Final = 1e-14
_MOST_TERMS: Final = 100_000
_TINY: Final = 1e-300
_CLOSE: Final = 1e-12  # relative, of a quantile by Newton's method
_MOST_STEPS: Final = 1000


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
    denominator = half + 1 - shape
    c = 1 / _TINY
    d = 1 / denominator
    found = d
    for number in range(1, _MOST_TERMS):
        numerator = -number * (number - shape)
        denominator += 2
        d = 1 / _away_from_zero(numerator * d + denominator)
        c = _away_from_zero(denominator + numerator / c)
        factor = c * d
        found *= factor
        if abs(factor - 1) < _PRECISE:
            break

    return found


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def confidence_factor(confidence: float, degrees: int) -> float:
    """Half the width of a two-sided interval by Student's t, in standard errors.

    ``confidence`` is above 0 and below 1, ``degrees`` at least 1. By Newton's method from the
    normal distribution's quantile, which lies below the result: from there the tail is convex, so
    that no step goes past it.
    """
    wanted = 1 - confidence
    factor = NormalDist().inv_cdf(0.5 + confidence / 2)
    for _ in range(_MOST_STEPS):
        excess = student_tail(factor, degrees) - wanted
        step = excess / (2 * _student_density(factor, degrees))
        factor += step
        if abs(step) <= _CLOSE * factor:
            break

    return factor


def student_tail(factor: float, degrees: int) -> float:
    """The chance that Student's t is beyond ``factor``, at least 0, on either side.

    By the incomplete beta function (Abramowitz and Stegun, 26.7.1).
    """
    return _incomplete_beta(degrees / (degrees + factor**2), degrees / 2, 0.5)


def _student_density(factor: float, degrees: int) -> float:
    gammas = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    exponent = (degrees + 1) / 2 * math.log1p(factor**2 / degrees)
    return math.exp(gammas - exponent) / math.sqrt(degrees * math.pi)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function for ``x`` above 0, ``a`` and ``b`` above 0.

    By its continued fraction (DLMF 8.17.22), which converges fast below the mean; beyond it by that
    of the complement.
    """
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)

    gammas = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    scale = math.exp(gammas + a * math.log(x) + b * math.log1p(-x))
    return scale / (a * _beta_fraction(x, a, b))


def _beta_fraction(x: float, a: float, b: float) -> float:
    """1 + d1 / (1 + d2 / (1 + …)), by Lentz's algorithm."""
    c = 1.0
    d = 0.0
    found = 1.0
    for number in range(1, _MOST_TERMS):
        numerator = _beta_numerator(number, x, a, b)
        d = 1 / _away_from_zero(1 + numerator * d)
        c = _away_from_zero(1 + numerator / c)
        factor = c * d
        found *= factor
        if abs(factor - 1) < _PRECISE:
            break

    return found


def _beta_numerator(number: int, x: float, a: float, b: float) -> float:
    half = number // 2
    end = a + number
    if number % 2:
        return -(a + half) * (a + b + half) * x / ((end - 1) * end)
    return half * (b - half) * x / ((end - 1) * end)
