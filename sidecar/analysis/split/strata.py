"""Whether some requests accept less than the others at the same temperatures.

This is judged from the requests that finished.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import sqrt
from operator import add, mul, sub
from statistics import NormalDist
from typing import Final, NamedTuple

from sidecar.analysis.evidence import CONFIDENCE

_FEWEST: Final = 5  # requests on each side for a stratum to be compared
_CLEARLY: Final = 0.05  # a difference of acceptance rates that matters
# share of the group's draft tokens that must be in strata that can be compared
_LEAST_COMPARED: Final = 0.5

Cell = tuple[Hashable, str]  # the stratum and the group


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
        """Of the rate, from how at least two requests differ.

        It is that of a ratio estimator (Cochran, Sampling Techniques, 2.11).
        """
        rate = self.accepted / self.drafted
        squares = self.accepted_squared - 2 * rate * self.product + rate**2 * self.drafted_squared
        return max(squares, 0.0) / self.drafted**2 * self.requests / (self.requests - 1)


def total(cells: Iterable[Sums]) -> Sums:
    """All of them together."""
    return sum(cells, Sums())


class Difference(NamedTuple):
    """The acceptance ``rate`` of a group's requests, and that of the ``others``.

    The others are in the same strata and weighted alike. ``error`` is the standard error of their
    difference, ``needed`` how many of it chance seldom exceeds; ``drafted`` of the group's draft
    tokens were compared.
    """

    rate: float
    others: float
    error: float
    drafted: int
    needed: float = CONFIDENCE

    @property
    def value(self) -> float:
        """How far the rate lies above that of the others."""
        return self.rate - self.others

    @property
    def is_clearly_lower(self) -> bool:
        """Whether it is below 0 by more than chance, and by enough to matter."""
        return self.value < -_CLEARLY and self.value + self.needed * self.error < 0


def differences(cells: Mapping[Cell, Sums], min_requests: int) -> Mapping[str, Difference]:
    """Each group that can be compared with all others.

    Both sides need at least ``min_requests`` requests.
    """
    strata: dict[Hashable, dict[str, Sums]] = {}
    for (stratum, group), sums in cells.items():
        strata.setdefault(stratum, {})[group] = sums

    pairs: dict[str, list[tuple[Sums, Sums]]] = {}
    for groups in strata.values():
        everything = total(groups.values())
        for group, sums in groups.items():
            pairs.setdefault(group, []).append((sums, everything - sums))

    known = {
        group: difference
        for group in sorted(pairs)
        if (difference := _difference(pairs[group], min_requests))
    }

    # Of many groups, some differ by two standard errors by chance (Bonferroni).
    chance = NormalDist().cdf(-CONFIDENCE) / max(len(known) - 1, 1)
    needed = -NormalDist().inv_cdf(chance)
    return {group: difference._replace(needed=needed) for group, difference in known.items()}


def _difference(pairs: Sequence[tuple[Sums, Sums]], min_requests: int) -> Difference | None:
    """The difference of a group from the others in each stratum.

    It is weighted by the group's draft tokens: only the rates differ then.
    """
    compared = [
        (mine, rest) for mine, rest in pairs if min(mine.requests, rest.requests) >= _FEWEST
    ]
    drafted = sum(mine.drafted for mine, _ in compared)
    least = _LEAST_COMPARED * sum(mine.drafted for mine, _ in pairs)
    is_enough = all(
        sum(side.requests for side in sides) >= min_requests
        for sides in zip(*compared, strict=True)
    )
    if not compared or not is_enough or drafted < least:
        return None

    rate = sum(mine.accepted for mine, _ in compared) / drafted
    others = sum(mine.drafted * rest.rate for mine, rest in compared) / drafted
    variance = sum(mine.drafted**2 * (mine.variance + rest.variance) for mine, rest in compared)
    return Difference(rate, others, sqrt(variance) / drafted, drafted)
