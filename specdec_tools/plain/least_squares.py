"""Weighted least squares of a few unknowns by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

# A column that is so much a combination of others, by the part of its square that is left, cannot
# be told from them.
_DISTINCT: Final = 0.02


@dataclass(frozen=True, slots=True)
class Equation:
    """The mean time of ``weight`` steps, and how each unknown contributes to it."""

    seconds: float
    parts: Mapping[str, float]
    weight: float

    def explained(self, values: Mapping[str, float]) -> float:
        """The seconds by these values of the unknowns; a missing one is 0."""
        return sum(values.get(name, 0.0) * part for name, part in self.parts.items())


def least_squares(rows: Sequence[Equation], names: Sequence[str]) -> dict[str, float]:
    """The unknowns of the weighted equations, without those that others explain as well.

    A name that comes earlier is kept.
    """
    wanted = frozenset(names)
    products = dict.fromkeys(product(names, names), 0.0)
    right = dict.fromkeys(names, 0.0)
    for row in rows:
        parts = [(name, part) for name, part in row.parts.items() if part and name in wanted]
        for name, part in parts:
            right[name] += row.weight * part * row.seconds
            for other, another in parts:
                products[name, other] += row.weight * part * another

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
