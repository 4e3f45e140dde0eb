"""Weighted least squares of a few unknowns by name, and the jackknife for their errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final, TypeVar

# A column that is so much a combination of others, by the part of its square that is left, cannot
# be told from them.
_DISTINCT: Final = 0.02


@dataclass(frozen=True, slots=True)
class Measured:
    """A value and its standard error; ``error`` is infinite where one cannot be stated."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Equation:
    """The mean time of ``weight`` steps, and how each unknown contributes to it."""

    seconds: float
    parts: Mapping[str, float]
    weight: float


def least_squares(rows: Sequence[Equation], names: Sequence[str]) -> dict[str, float]:
    """The unknowns of the weighted equations, without those that others explain as well.

    A name that comes earlier is kept.
    """
    products = {
        (one, other): sum(
            row.weight * row.parts.get(one, 0.0) * row.parts.get(other, 0.0) for row in rows
        )
        for one in names
        for other in names
    }
    right = {
        name: sum(row.weight * row.parts.get(name, 0.0) * row.seconds for row in rows)
        for name in names
    }

    # Gaussian elimination, name by name; a pivot is what earlier names leave of its square.
    left = dict(products)
    pivots = []
    for name in names:
        if left[name, name] <= _DISTINCT * products[name, name]:
            continue
        pivots.append(name)
        for other in names:
            if other in pivots:
                continue
            factor = left[other, name] / left[name, name]
            right[other] -= factor * right[name]
            for column in names:
                left[other, column] -= factor * left[name, column]

    found: dict[str, float] = {}
    for name in reversed(pivots):
        known = sum(left[name, other] * value for other, value in found.items())
        found[name] = (right[name] - known) / left[name, name]

    return found


Observation = TypeVar("Observation")


def jackknife(
    observations: Sequence[Observation],
    estimate: Callable[[Sequence[Observation]], Mapping[str, float]],
    whole: Mapping[str, float],
) -> dict[str, float]:
    """The standard error of each value, from how it changes when an observation is left out.

    Values that depend on a single observation are missing.
    """
    others = [
        estimate([*observations[:place], *observations[place + 1 :]])
        for place in range(len(observations))
    ]
    errors = {}
    for name in whole:
        values = [other[name] for other in others if name in other]
        if len(values) < len(observations):
            continue
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values)
        errors[name] = sqrt(spread * (len(values) - 1) / len(values))

    return errors
