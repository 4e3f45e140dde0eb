"""Whether some requests accept less than the others at the same temperatures, from the requests that finished."""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import sqrt
from operator import add, sub
from statistics import NormalDist
from typing import Final, NamedTuple

from sidecar.analysis.evidence import CONFIDENCE

_SLICES: Final = 20
_FEWEST: Final = 5  # requests on each side for a stratum to be compared
_CLEARLY: Final = 0.05  # a difference of acceptance rates that matters
_LEAST_COMPARED: Final = 0.5  # share of the group's draft tokens that must be in strata that can be compared

Cell = tuple[Hashable, str]  # the stratum and the group
_Rows = dict[Cell, list[int]]  # the fields of ``Sums``
_NOTHING: Final = (0, 0, 0, 0, 0, 0)


class Sums(NamedTuple):
    """Requests, their draft and accepted tokens, and the sums of the squares and products of these two."""

    requests: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_squared: int = 0
    accepted_squared: int = 0
    product: int = 0

    def minus(self, other: "Sums") -> "Sums":
        """Without the ``other``, which is a part of it."""
        return Sums(*map(sub, self, other))

    @property
    def rate(self) -> float:
        """The acceptance rate; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def variance(self) -> float:
        """Of the rate, from how at least two requests differ (ratio estimator; Cochran, Sampling Techniques, 2.11)."""
        rate = self.accepted / self.drafted
        squares = self.accepted_squared - 2 * rate * self.product + rate**2 * self.drafted_squared
        return max(squares, 0.0) / self.drafted**2 * self.requests / (self.requests - 1)


def total(cells: Iterable[Sums]) -> Sums:
    """All of them together."""
    return Sums(*map(sum, zip(*cells, strict=True)))  # none of them: zeros


class Difference(NamedTuple):
    """The acceptance ``rate`` of a group's requests, and that of the ``others`` in the same strata, weighted alike.

    ``error`` is the standard error of their difference, ``needed`` how many of it chance seldom exceeds; ``drafted`` of
    the group's draft tokens were compared.
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


class Strata:
    """The finished requests of a sliding window by stratum and group. Bounded by the number of these."""

    def __init__(self, seconds: float) -> None:
        """``seconds`` is the length of the window, by the clock that gives ``at``, exact to a twentieth."""
        self._seconds = seconds
        self._slices: deque[tuple[float, _Rows]] = deque()  # by start, the oldest first
        self._ended: _Rows = {}  # the sums of all slices but the latest

    @property
    def cells(self) -> Mapping[Cell, Sums]:
        """The sums by stratum and group."""
        latest = self._slices[-1][1] if self._slices else {}
        rows = ((cell, (self._ended.get(cell), latest.get(cell))) for cell in {**self._ended, **latest})
        return {cell: total(Sums(*row) for row in both if row is not None) for cell, both in rows}

    def add(self, at: float, stratum: Hashable, group: str, *, drafted: int, accepted: int) -> None:
        """Adds a request that finished at ``at``; one without drafts says nothing."""
        if not drafted:
            return
        if not self._slices or not 0 <= at - self._slices[-1][0] < self._seconds / _SLICES:
            self.drop(at)
            for cell, row in self._slices[-1][1].items() if self._slices else ():
                self._ended[cell] = [*map(add, self._ended.get(cell, _NOTHING), row)]
            self._slices.append((at, {}))
        row = self._slices[-1][1].setdefault((stratum, group), [*_NOTHING])
        row[0] += 1  # in place: this runs for each request and each way of grouping
        row[1] += drafted
        row[2] += accepted
        row[3] += drafted * drafted
        row[4] += accepted * accepted
        row[5] += drafted * accepted

    def drop(self, now: float) -> None:
        """Forgets what finished before the window that ends at ``now``; everything if the clock was set back."""
        if self._slices and now < self._slices[-1][0]:
            self._slices.clear()
            self._ended.clear()
        while self._slices and self._slices[0][0] < now - self._seconds:
            _, rows = self._slices.popleft()
            for cell, row in rows.items() if self._slices else ():  # the latest is not among those that have ended
                self._ended[cell] = [*map(sub, self._ended[cell], row)]
                if not self._ended[cell][0]:
                    del self._ended[cell]

    def differences(self, min_requests: int) -> Mapping[str, Difference]:
        """Each group that can be compared with all others: on both sides by at least ``min_requests`` requests."""
        strata: dict[Hashable, dict[str, Sums]] = {}
        for (stratum, group), sums in self.cells.items():
            strata.setdefault(stratum, {})[group] = sums
        pairs: dict[str, list[tuple[Sums, Sums]]] = {}
        for groups in strata.values():
            everything = total(groups.values())
            for group, sums in groups.items():
                pairs.setdefault(group, []).append((sums, everything.minus(sums)))
        known = {
            group: difference for group in sorted(pairs) if (difference := _difference(pairs[group], min_requests))
        }
        # Of many groups, some differ by two standard errors by chance (Bonferroni).
        chance = NormalDist().cdf(-CONFIDENCE) / max(len(known) - 1, 1)
        needed = -NormalDist().inv_cdf(chance)
        return {group: difference._replace(needed=needed) for group, difference in known.items()}


def _difference(pairs: Sequence[tuple[Sums, Sums]], min_requests: int) -> Difference | None:
    """Of a group from the others in each stratum, weighted by the group's draft tokens: only the rates differ then."""
    compared = [(mine, rest) for mine, rest in pairs if min(mine.requests, rest.requests) >= _FEWEST]
    drafted = sum(mine.drafted for mine, _ in compared)
    is_enough = all(sum(side.requests for side in sides) >= min_requests for sides in zip(*compared, strict=True))
    if not compared or not is_enough or drafted < _LEAST_COMPARED * sum(mine.drafted for mine, _ in pairs):
        return None
    rate = sum(mine.accepted for mine, _ in compared) / drafted
    others = sum(mine.drafted * rest.rate for mine, rest in compared) / drafted
    variance = sum(mine.drafted**2 * (mine.variance + rest.variance) for mine, rest in compared)
    return Difference(rate, others, sqrt(variance) / drafted, drafted)
