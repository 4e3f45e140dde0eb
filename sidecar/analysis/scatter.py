"""Standard errors from how much stretches of a measurement differ: what neighbours have in common counts once."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import TypeVar

T = TypeVar("T")


def blocks(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """At most ``count`` blocks of neighbours, each of about the same length."""
    count = min(count, len(items))
    edges = [round(index * len(items) / count) for index in range(count + 1)] if count else []
    return [items[start:end] for start, end in pairwise(edges)]


def scatter(off: Sequence[float]) -> float:
    """The standard error of a sum: ``off`` is how far each of its parts, two at least, is from what it should be.

    With parts a - R b it is that of the ratio R of the sums of a and b, times the sum of b (Cochran, Sampling
    Techniques, 2.11).
    """
    return sqrt(sum([one**2 for one in off]) * len(off) / (len(off) - 1))
