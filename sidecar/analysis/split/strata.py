"""Whether some requests accept less than the others at the same temperatures, from the requests that finished."""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import sqrt
from typing import Final, NamedTuple

_SLICES: Final = 60
_FEWEST: Final = 5  # requests on each side for a stratum to be compared
_CLEARLY: Final = 0.05  # a difference of acceptance rates that matters
_CONFIDENCE: Final = 2.0  # standard errors
_LEAST_COMPARED: Final = 0.5  # share of the draft tokens that must be in strata that can be compared


Cell = tuple[str, str, Hashable]  # what divides the requests, the group, and the stratum


class Sums(NamedTuple):
    """Requests, their draft and accepted tokens, and the sums of the squares and products of these two."""

    requests: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_squared: int = 0
    accepted_squared: int = 0
    product: int = 0

    def plus(self, other: "Sums", sign: int = 1) -> "Sums":
        """Both together, or without the ``other`` if ``sign`` is -1."""
        return Sums(*(mine + sign * theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def rate(self) -> float:
        """The acceptance rate; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def variance(self) -> float:
        """Of the rate, from how at least two requests differ (ratio estimator; Cochran, Sampling Techniques, 2.11)."""
        squares = self.accepted_squared - 2 * self.rate * self.product + self.rate**2 * self.drafted_squared
        return max(squares, 0.0) / self.drafted**2 * self.requests / (self.requests - 1)


class Difference(NamedTuple):
    """How far the acceptance rate of some requests lies above that of the others in the same strata.

    ``rate`` is theirs, ``others`` that of the others, weighted alike; ``requests`` and ``drafted`` were compared.
    """

    value: float
    error: float
    rate: float
    others: float
    requests: int
    drafted: int

    @property
    def is_clearly_lower(self) -> bool:
        """Whether it is below 0 by more than chance, and by enough to matter."""
        return self.value < -_CLEARLY and self.value + _CONFIDENCE * self.error < 0


class Strata:
    """Sums over a sliding window by cell. Bounded by the number of labels."""

    def __init__(self, seconds: float) -> None:
        """``seconds`` is the length of the window, by the clock that gives ``at``."""
        self._slice = seconds / _SLICES
        self._slices: deque[tuple[float, dict[Cell, Sums]]] = deque()  # by start, the oldest first
        self._totals: dict[Cell, Sums] = {}

    def add(self, at: float, drafted: int, accepted: int, cells: Iterable[Cell]) -> None:
        """Adds a request that finished at ``at`` to each of its ``cells``; one without drafts says nothing."""
        if not drafted:
            return
        if self._slices and at < self._slices[-1][0]:  # the clock was set back
            self._slices.clear()
            self._totals.clear()
        if not self._slices or at - self._slices[-1][0] >= self._slice:
            self._slices.append((at, {}))
        request = Sums(1, drafted, accepted, drafted**2, accepted**2, drafted * accepted)
        newest = self._slices[-1][1]
        for cell in cells:
            newest[cell] = newest.get(cell, Sums()).plus(request)
            self._totals[cell] = self._totals.get(cell, Sums()).plus(request)

    def drop(self, now: float) -> None:
        """Forgets what finished before the window that ends at ``now``."""
        while self._slices and self._slices[0][0] < now - _SLICES * self._slice:
            for cell, sums in self._slices.popleft()[1].items():
                left = self._totals[cell].plus(sums, -1)
                if left.requests:
                    self._totals[cell] = left
                else:
                    del self._totals[cell]

    def sums(self, by: str) -> Mapping[str, Sums]:
        """The requests of each group, over all strata."""
        sums: dict[str, Sums] = {}
        for (table, group, _), cell in self._totals.items():
            if table == by:
                sums[group] = sums.get(group, Sums()).plus(cell)
        return sums

    def differences(self, by: str, min_requests: int) -> Mapping[str, Difference]:
        """Each group of ``by`` with ``min_requests`` that can be compared with all others, stratum by stratum."""
        strata: dict[Hashable, dict[str, Sums]] = {}
        for (table, group, stratum), sums in self._totals.items():
            if table == by:
                strata.setdefault(stratum, {})[group] = sums
        groups = {group for cells in strata.values() for group in cells}
        totals = {stratum: _sum(cells.values()) for stratum, cells in strata.items()}
        pairs: dict[str, list[tuple[Sums, Sums]]] = {group: [] for group in sorted(groups)}
        for stratum, cells in strata.items():
            for group, sums in cells.items():
                pairs[group].append((sums, totals[stratum].plus(sums, -1)))
        known = {group: difference for group, both in pairs.items() if (difference := _difference(both)) is not None}
        return {group: difference for group, difference in known.items() if difference.requests >= min_requests}


def _sum(cells: Iterable[Sums]) -> Sums:
    total = Sums()
    for sums in cells:
        total = total.plus(sums)
    return total


def _difference(strata: Sequence[tuple[Sums, Sums]]) -> Difference | None:
    """Of a group from the others in each stratum, weighted by the group's draft tokens: only the rates differ then."""
    drafted = sum(mine.drafted for mine, _ in strata)
    both = [(mine, rest) for mine, rest in strata if min(mine.requests, rest.requests) >= _FEWEST]
    compared = sum(mine.drafted for mine, _ in both)
    if not compared or compared < _LEAST_COMPARED * drafted:
        return None
    own = sum(mine.accepted for mine, _ in both) / compared
    others = sum(mine.drafted * rest.rate for mine, rest in both) / compared
    variance = sum(mine.drafted**2 * (mine.variance + rest.variance) for mine, rest in both)
    requests = sum(mine.requests for mine, _ in both)
    return Difference(own - others, sqrt(variance) / compared, own, others, requests, compared)
