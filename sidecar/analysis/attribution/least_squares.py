"""Weighted least squares for a handful of unknowns with a common prior, on sums instead of rows.

Each observation says that ``row · x`` is about ``target``, with a variance of noise / weight. Only the normal equations
are kept, so memory does not depend on the number of observations, and older ones can fade.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidecar.analysis.regression import eliminate


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """``errors[i]`` is the standard error of ``values[i]``."""

    values: tuple[float, ...]
    errors: tuple[float, ...]


class LeastSquares:
    """Observations of ``size`` unknowns."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._matrix = [[0.0] * size for _ in range(size)]
        self._vector = [0.0] * size
        self._square = 0.0
        self.count = 0.0  # of observations, each by its remaining weight

    def fade(self, factor: float) -> None:
        """Multiplies the weight of all observations so far by ``factor``, 0 to 1."""
        self._matrix = [[cell * factor for cell in row] for row in self._matrix]
        self._vector = [cell * factor for cell in self._vector]
        self._square *= factor
        self.count *= factor

    def add(self, row: Mapping[int, float], target: float, weight: float) -> None:
        """Adds an observation; ``row`` has the coefficients that are not 0, by the index of the unknown."""
        for i, left in row.items():
            self._vector[i] += weight * left * target
            for j, right in row.items():
                self._matrix[i][j] += weight * left * right
        self._square += weight * target * target
        self.count += 1

    def solve(self, *, mean: float, deviation: float, noise: float) -> Solution:
        """The most likely values if each unknown has the prior ``mean`` ± ``deviation``.

        ``noise`` is a lower bound on the observations' variance: their residuals may show more.
        """
        values, _ = self._posterior(mean, noise / deviation**2)
        noise = max(noise, self._unexplained(values) / max(self.count - self._size, 1.0))
        values, diagonal = self._posterior(mean, noise / deviation**2)
        return Solution(values=tuple(values), errors=tuple(math.sqrt(noise * cell) for cell in diagonal))

    def _posterior(self, mean: float, weight: float) -> tuple[list[float], list[float]]:
        """The values, and the diagonal of the inverse of the normal equations' matrix with the prior in it."""
        matrix = [
            [cell + (weight if i == j else 0.0) for j, cell in enumerate(row)] for i, row in enumerate(self._matrix)
        ]
        inverse = _inverse(matrix)
        vector = [cell + weight * mean for cell in self._vector]
        return [sum(map(float.__mul__, row, vector)) for row in inverse], [row[i] for i, row in enumerate(inverse)]

    def _unexplained(self, values: Sequence[float]) -> float:
        cross = sum(map(float.__mul__, self._vector, values))
        fitted = [sum(map(float.__mul__, row, values)) for row in self._matrix]
        return max(self._square - 2 * cross + sum(map(float.__mul__, values, fitted)), 0.0)


def _inverse(matrix: list[list[float]]) -> list[list[float]]:
    """The inverse of a symmetric positive definite matrix, by Gauss-Jordan elimination; no pivoting is needed."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        eliminate(rows, i)
    return [row[size:] for row in rows]
