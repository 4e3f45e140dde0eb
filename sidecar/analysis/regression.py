"""Weighted linear regression of a few unknowns, with standard errors that allow for correlated neighbours."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot, inf, sqrt
from typing import Final

_BLOCKS: Final = 40
_SINGULAR: Final = 1e-9  # relative size of a diagonal element that is 0 except for rounding


@dataclass(frozen=True, slots=True)
class Observation:
    """``row`` has the coefficients that are not 0, by the index of the unknown; their sum is about ``target``."""

    row: Mapping[int, float]
    target: float
    weight: float


@dataclass(frozen=True, slots=True)
class Solution:
    """``deviations[i][j]``: how far the j-th of independent errors, one standard deviation each, moves ``values[i]``.

    So the covariance of two values is the scalar product of their rows. None if the observations do not determine it.
    """

    values: tuple[float, ...]
    deviations: tuple[tuple[float, ...], ...] | None

    def error(self, i: int) -> float:
        """The standard error of ``values[i]``; infinite if it is not determined."""
        return inf if self.deviations is None else hypot(*self.deviations[i])


def regress(observed: Sequence[Observation], size: int) -> Solution:
    """The ``size`` unknowns that minimize the squared residuals.

    ``observed`` is in chronological order and has at least two elements. It is cut into blocks, each of which is left
    out in turn, and the covariance is the jackknife's. So what neighbours have in common counts once.
    """
    count = min(_BLOCKS, len(observed) // 2)
    edges = [round(index * len(observed) / count) for index in range(count + 1)]
    blocks = [_sums(observed[start:end], size) for start, end in pairwise(edges)]
    whole = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*blocks, strict=True)]
    values = _solve(whole)
    left_out = [_solve(_without(whole, block)) for block in blocks]
    known = [one for one in left_out if one is not None]
    if values is None or len(known) < count:
        return Solution(values or (0.0,) * size, None)
    return Solution(values, _cholesky(_jackknife(known)))


def _sums(observations: Iterable[Observation], size: int) -> list[list[float]]:
    """The normal equations: a row for each unknown, the right side in its last column."""
    sums = [[0.0] * (size + 1) for _ in range(size)]
    for one in observations:
        for i, left in one.row.items():
            for j, right in one.row.items():
                sums[i][j] += one.weight * left * right
            sums[i][size] += one.weight * left * one.target
    return sums


def _without(whole: list[list[float]], block: list[list[float]]) -> list[list[float]]:
    return [[a - b for a, b in zip(row, cells, strict=True)] for row, cells in zip(whole, block, strict=True)]


def _solve(sums: list[list[float]]) -> tuple[float, ...] | None:
    """The solution by Gauss-Jordan elimination; None if singular. Diagonal pivots suffice: the matrix is positive."""
    rows = [row.copy() for row in sums]
    for i in range(len(rows)):
        if rows[i][i] <= _SINGULAR * sums[i][i]:
            return None
        eliminate(rows, i)
    return tuple(row[-1] for row in rows)


def eliminate(rows: list[list[float]], i: int) -> None:
    """One step of Gauss-Jordan elimination, in place: column ``i`` becomes 1 in row ``i`` and 0 in all others."""
    pivot = rows[i] = [cell / rows[i][i] for cell in rows[i]]
    for j in range(len(rows)):
        if j != i and (factor := rows[j][i]):
            rows[j] = [cell - factor * above for cell, above in zip(rows[j], pivot, strict=True)]


def _jackknife(left_out: Sequence[tuple[float, ...]]) -> list[list[float]]:
    """The covariance of the estimates, from those that leave out one block each."""
    means = [sum(column) / len(left_out) for column in zip(*left_out, strict=True)]
    off = [[value - mean for value, mean in zip(row, means, strict=True)] for row in left_out]
    columns = list(zip(*off, strict=True))
    share = (len(left_out) - 1) / len(left_out)
    return [[share * _dot(one, other) for other in columns] for one in columns]


def _dot(one: Iterable[float], other: Iterable[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _cholesky(covariance: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """Rows whose scalar products are the covariance; a value that others determine adds no column of its own."""
    rows: list[list[float]] = []
    for i, cells in enumerate(covariance):
        row: list[float] = []
        for j in range(i):
            pivot = rows[j][j]
            row.append((cells[j] - _dot(row, rows[j][:j])) / pivot if pivot else 0.0)
        left = cells[i] - _dot(row, row)
        rows.append([*row, sqrt(left) if left > _SINGULAR * cells[i] else 0.0])
    return tuple(tuple(row) for row in rows)
