"""Whether some requests accept less than the others at the same temperatures.

This is judged from the requests that finished.
"""

from collections.abc import Hashable, Mapping, Sequence
from math import sqrt
from statistics import NormalDist
from typing import Final, NamedTuple

from sidecar.analysis.certainty.sums import Sums, total
from sidecar.analysis.evidence import CONFIDENCE

_FEWEST: Final = 5  # requests on each side for a stratum to be compared
_CLEARLY: Final = 0.05  # a difference of acceptance rates that matters
# share of the group's draft tokens that must be in strata that can be compared
_LEAST_COMPARED: Final = 0.5

Cell = tuple[Hashable, str]  # the stratum and the group


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
