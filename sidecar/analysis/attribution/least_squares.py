"""Least squares for a handful of unknowns that can't be negative, on sums instead of rows.

Each observation says that ``row · x`` is about ``target``. Only the normal equations are kept, so the memory does not
depend on the number of observations, and older ones can be faded out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_SWEEPS: Final = 300
_CLOSE_ENOUGH: Final = 1e-7
_SINGULAR: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Solution:
    """``errors[i]`` is the standard error of ``values[i]``; infinite where the observations do not tell it apart."""

    values: tuple[float, ...]
    errors: tuple[float, ...]


class LeastSquares:
    """Weighted observations of ``size`` unknowns between 0 and ``most``."""

    def __init__(self, size: int, most: float = math.inf) -> None:
        self._size = size
        self._most = most
        self._matrix = [[0.0] * size for _ in range(size)]
        self._vector = [0.0] * size
        self._square = 0.0
        self._count = 0.0

    @property
    def count(self) -> float:
        """Observations, the faded ones for what is left of them."""
        return self._count

    def fade(self, factor: float) -> None:
        """Multiplies the weight of all observations so far by ``factor``, from 0 to 1."""
        for row in self._matrix:
            row[:] = [cell * factor for cell in row]
        self._vector = [cell * factor for cell in self._vector]
        self._square *= factor
        self._count *= factor

    def add(self, row: Mapping[int, float], target: float, weight: float) -> None:
        """One observation; ``row`` has the coefficients that are not 0, by the index of the unknown."""
        for i, left in row.items():
            cells = self._matrix[i]
            self._vector[i] += weight * left * target
            for j, right in row.items():
                cells[j] += weight * left * right
        self._square += weight * target * target
        self._count += 1

    def solve(self) -> Solution:
        """The values in their range that leave the least; unknowns never observed are 0 with an infinite error."""
        values = self._descend()
        seen = [i for i in range(self._size) if self._matrix[i][i] > 0]
        spare = self._count - len(seen)
        if spare <= 0:
            return Solution(tuple(values), (math.inf,) * self._size)
        variance = self._left_over(values) / spare
        errors = [math.inf] * self._size
        for i, diagonal in zip(
            seen, _inverse_diagonal([[self._matrix[i][j] for j in seen] for i in seen]), strict=True
        ):
            errors[i] = math.sqrt(variance * diagonal) if diagonal < math.inf else math.inf
        return Solution(tuple(values), tuple(errors))

    def _descend(self) -> list[float]:
        """Coordinate descent: the problem is convex, so it ends at the least wherever it starts."""
        values = [0.0] * self._size
        for _ in range(_SWEEPS):
            moved = 0.0
            for i, row in enumerate(self._matrix):
                if row[i] <= 0:
                    continue
                gradient = self._vector[i] - sum(map(float.__mul__, row, values))
                value = min(max(values[i] + gradient / row[i], 0.0), self._most)
                moved = max(moved, abs(value - values[i]))
                values[i] = value
            if moved < _CLOSE_ENOUGH:
                break
        return values

    def _left_over(self, values: Sequence[float]) -> float:
        cross = sum(map(float.__mul__, self._vector, values))
        curved = sum(
            value * sum(map(float.__mul__, row, values)) for value, row in zip(values, self._matrix, strict=True)
        )
        return max(self._square - 2 * cross + curved, 0.0)


def _inverse_diagonal(matrix: list[list[float]]) -> list[float]:
    """The diagonal of the inverse of a positive matrix; infinite for what can't be told apart."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    lost: set[int] = set()
    for i in range(size):
        if rows[i][i] <= _SINGULAR * matrix[i][i]:
            # What is left of this unknown is a mix of earlier ones: none of those is determined either.
            lost |= {i, *(j for j in range(i) if abs(rows[i][size + j]) > _SINGULAR)}
            continue
        scale = 1 / rows[i][i]
        rows[i] = [cell * scale for cell in rows[i]]
        for j in range(size):
            if j != i and (factor := rows[j][i]):
                rows[j] = [cell - factor * pivot for cell, pivot in zip(rows[j], rows[i], strict=True)]
    return [math.inf if i in lost else max(rows[i][size + i], 0.0) for i in range(size)]
