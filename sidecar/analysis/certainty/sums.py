"""Sums over requests from which a rate and its variance follow."""

from collections.abc import Iterable, Sequence
from operator import add, mul, sub
from typing import NamedTuple


def squares_off(ratio: float, of_a: float, of_ab: float, of_b: float) -> float:
    """The sum of (a - ratio · b)², from the sums of a², a · b and b².

    The variance of a ratio of sums comes from it (Cochran, Sampling Techniques, 2.11).
    """
    return max(of_a - 2 * ratio * of_ab + ratio * ratio * of_b, 0.0)


class Sums(NamedTuple):
    """Requests, their draft and accepted tokens, and sums of these two's squares and products."""

    requests: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_squared: int = 0
    accepted_squared: int = 0
    product: int = 0

    @classmethod
    def of(cls, drafted: Sequence[int], accepted: Sequence[int]) -> "Sums":
        """Requests, each with its draft and accepted tokens."""
        squares = (sum(map(mul, drafted, drafted)), sum(map(mul, accepted, accepted)))
        return cls(
            len(drafted), sum(drafted), sum(accepted), *squares, sum(map(mul, drafted, accepted))
        )

    def __add__(self, other: "Sums") -> "Sums":  # type: ignore[override]  # not as tuples
        """Both together."""
        return Sums(*map(add, self, other))

    def __sub__(self, other: "Sums") -> "Sums":
        """Without the ``other``, which is a part of it."""
        return Sums(*map(sub, self, other))

    def __bool__(self) -> bool:
        """Whether there are any requests."""
        return self.requests > 0

    @property
    def rate(self) -> float:
        """The acceptance rate; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def variance(self) -> float:
        """Of the rate, from how at least two requests differ."""
        rate = self.accepted / self.drafted
        off = squares_off(rate, self.accepted_squared, self.product, self.drafted_squared)
        return off / self.drafted**2 * self.requests / (self.requests - 1)


def total(cells: Iterable[Sums]) -> Sums:
    """All of them together."""
    return Sums(*map(sum, zip(*cells, strict=True)))
