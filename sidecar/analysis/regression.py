"""Weighted linear regression of a few unknowns, with standard errors that neighbouring observations do not flatter."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, sqrt
from typing import Final

_BLOCKS: Final = 40
_SINGULAR: Final = 1e-9  # relative size of a diagonal element that is 0 but for rounding


@dataclass(frozen=True, slots=True)
class Observation:
    """``row`` has the coefficients that are not 0, by the index of the unknown; their sum is about ``target``."""

    row: Mapping[int, float]
    target: float
    weight: float


@dataclass(frozen=True, slots=True)
class Solution:
    """``errors[i]`` is the standard error of ``values[i]``; all infinite if the observations do not determine it."""

    values: tuple[float, ...]
    errors: tuple[float, ...]


def regress(observed: Sequence[Observation], size: int) -> Solution:
    """The ``size`` unknowns that minimize the squared residuals.

    ``observed`` is in chronological order, has at least two elements and is cut into blocks; each is left out in turn,
    and the standard errors are the jackknife's. So what neighbours have in common counts once.
    """
    count = min(_BLOCKS, len(observed) // 2)
    edges = [round(index * len(observed) / count) for index in range(count + 1)]
    blocks = [_sums(observed[start:end], size) for start, end in pairwise(edges)]
    whole = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*blocks, strict=True)]
    values = _solve(whole)
    left_out = [_solve(_without(whole, block)) for block in blocks]
    known = [one for one in left_out if one is not None]
    if values is None or len(known) < count:
        return Solution(values or (0.0,) * size, (inf,) * size)
    return Solution(values, tuple(_spread(column) for column in zip(*known, strict=True)))


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


def _spread(values: Sequence[float]) -> float:
    """The jackknife's standard error, from the estimates without one block after another."""
    mean = sum(values) / len(values)
    return sqrt((len(values) - 1) / len(values) * sum((value - mean) ** 2 for value in values))
