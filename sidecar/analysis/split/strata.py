"""Whether some requests accept less than others that are otherwise alike.

A stratum has requests that differ in nothing that is told but the group: so a group is not blamed
for another one's requests. This is judged from the requests that finished.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Final, NamedTuple

from sidecar.analysis.certainty.spread import Spread
from sidecar.analysis.certainty.sums import Sums, total

CERTAIN: Final = 4.5
"""Errors from which on a difference is told: many groups are compared, at every poll."""
CLEARLY: Final = 0.05
"""A difference of acceptance rates that matters."""
_GOES_ON: Final = 0.5  # of both, for a difference that has been told
_FEWEST: Final = 5  # requests on each side for a stratum to be compared
# share of the group's draft tokens that must be in strata that can be compared
_LEAST_COMPARED: Final = 0.5

ENGINE: Final = "engine"  # divides requests as a table does


@dataclass(frozen=True, slots=True)
class Kind:
    """What requests have in common: all that a group is told by, and their engine.

    ``groups`` has the group in each table that the plug-in tells.
    """

    temperature: str
    engine: str
    groups: tuple[tuple[str, str], ...]


Cells = Mapping[Kind, Sums]


@dataclass(frozen=True, slots=True)
class Difference:
    """The acceptance ``rate`` of a group's requests, and that of the ``others``.

    The others are in the same strata and weighted alike. ``error`` is the standard error of their
    difference, ``share`` the group's share of all draft tokens, as far as they were compared.
    ``was_lower``: it had been told before, and takes less to go on.
    """

    rate: float
    others: float
    error: float
    share: float
    was_lower: bool = False

    @property
    def value(self) -> float:
        """How far the rate lies above that of the others."""
        return self.rate - self.others

    @property
    def is_clearly_lower(self) -> bool:
        """Whether it is below 0 by more than chance, and by enough to matter."""
        part = _GOES_ON if self.was_lower else 1.0
        return self.value < -part * CLEARLY and self.value + part * CERTAIN * self.error < 0

    @property
    def contradicts(self) -> bool:
        """Whether it speaks against a group that accepts less."""
        return self.value - self.error > -_GOES_ON * CLEARLY


class _Pair(NamedTuple):
    """The group's requests in a stratum, all others there, and how such requests differ."""

    mine: Sums
    rest: Sums
    spread: Spread


def differences(
    by: str, cells: Cells, spreads: Mapping[str, Spread], min_requests: int
) -> Mapping[str, Difference]:
    """Each group of the table ``by``, or engine, that can be compared with all others.

    Both sides need at least ``min_requests`` requests. ``spreads`` is by temperature.
    """
    strata: dict[Kind, dict[str, Sums]] = {}
    for kind, sums in cells.items():
        stratum, group = _divided(by, kind)
        if group is not None:
            groups = strata.setdefault(stratum, {})
            groups[group] = groups[group] + sums if group in groups else sums
    if len({group for groups in strata.values() for group in groups}) < 2:
        return {}

    pairs: dict[str, list[_Pair]] = {}
    for stratum, groups in strata.items():
        everything = total(groups.values())
        spread = spreads.get(stratum.temperature, Spread())
        for group, sums in groups.items():
            pairs.setdefault(group, []).append(_Pair(sums, everything - sums, spread))

    drafted = sum(one.drafted for one in cells.values())
    found = {group: _difference(pairs[group], drafted, min_requests) for group in sorted(pairs)}
    return {group: one for group, one in found.items() if one is not None}


def _divided(by: str, kind: Kind) -> tuple[Kind, str | None]:
    """The stratum, which has everything but the group, and the group; None if it is not told.

    Requests of all engines are compared, except between engines.
    """
    if by == ENGINE:
        return replace(kind, engine=""), kind.engine
    group = next((group for table, group in kind.groups if table == by), None)
    others = tuple(one for one in kind.groups if one[0] != by)
    return Kind(kind.temperature, "", others), group


def _difference(pairs: Sequence[_Pair], drafted: int, min_requests: int) -> Difference | None:
    """The difference of a group from the others in each stratum.

    It is weighted by the group's draft tokens: only the rates differ then.
    """
    compared = [one for one in pairs if min(one.mine.requests, one.rest.requests) >= _FEWEST]
    own = sum(one.mine.drafted for one in compared)
    least = _LEAST_COMPARED * sum(one.mine.drafted for one in pairs)
    fewest = min(
        sum(one.mine.requests for one in compared), sum(one.rest.requests for one in compared)
    )
    if not compared or fewest < min_requests or own < least:
        return None

    rate = sum(one.mine.accepted for one in compared) / own
    others = sum(one.mine.drafted * one.rest.rate for one in compared) / own
    variance = sum(
        one.mine.drafted**2 * (one.spread.variance_of(one.mine) + one.spread.variance_of(one.rest))
        for one in compared
    )
    return Difference(rate, others, sqrt(variance) / own, own / drafted)


def marginal(by: str, cells: Cells) -> Mapping[tuple[str, str], Sums]:
    """By temperature and the group in the table ``by``."""
    sums: dict[tuple[str, str], Sums] = {}
    for kind, one in cells.items():
        for table, group in kind.groups:
            if table == by:
                key = kind.temperature, group
                sums[key] = sums.get(key, Sums()) + one
    return sums


def told(known: Iterable[Difference], *, was_lower: bool) -> Difference | None:
    """The difference that is told of those over several spans, the shortest first.

    The first that is clearly lower, unless the most recent requests contradict it; else the last.
    """
    spans = [replace(one, was_lower=was_lower) for one in known]
    if not spans:
        return None
    if spans[0].contradicts:
        return spans[0]
    return next((one for one in spans if one.is_clearly_lower), spans[-1])
