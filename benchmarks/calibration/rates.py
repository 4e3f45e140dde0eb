"""How often something happened, and how often it may happen: with an upper 95 % bound."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from typing import Final, TypeVar

_CONFIDENCE: Final = 0.95
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Rate:
    """So many ``events`` of so many simulated cases."""

    events: int
    of: int

    @property
    def share(self) -> float:
        """Those that were seen."""
        return self.events / self.of

    @property
    def at_most(self) -> float:
        """The upper 95 % bound of the true share (Clopper and Pearson)."""
        if self.events == self.of:
            return 1.0
        return _bound(self.events, self.of, 1 - _CONFIDENCE)

    @property
    def at_least(self) -> float:
        """The lower 95 % bound."""
        if not self.events:
            return 0.0
        return 1 - _bound(self.of - self.events, self.of, 1 - _CONFIDENCE)

    def __str__(self) -> str:
        return f"{self.events} of {self.of} ({self.share:.1%}, at most {self.at_most:.1%})"


def _bound(events: int, of: int, chance: float) -> float:
    """The share at which so few events have this chance, by bisection."""
    low = 0.0
    high = 1.0
    for _ in range(50):
        middle = (low + high) / 2
        few = sum(
            math.comb(of, number) * middle**number * (1 - middle) ** (of - number)
            for number in range(events + 1)
        )
        if few > chance:
            low = middle
        else:
            high = middle
    return high


def most_events(seen: int) -> float:
    """The upper 95 % bound of the mean of events that come by chance (Poisson), of so many seen."""
    low = float(seen)
    high = 2.0 * seen + 10
    for _ in range(50):
        middle = (low + high) / 2
        log = math.log(middle)
        few = sum(
            math.exp(number * log - middle - math.lgamma(number + 1)) for number in range(seen + 1)
        )
        if few > 1 - _CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def rate(events: Iterable[bool]) -> Rate:
    """Of what was simulated."""
    known = list(events)
    return Rate(sum(known), len(known))


def in_parallel(
    work: Callable[[int], _Result], seeds: Sequence[int], processes: int
) -> list[_Result]:
    """The results of all seeds, in order, by so many processes."""
    if processes == 1:
        return list(map(work, seeds))
    with Pool(processes) as pool:
        return pool.map(work, seeds, chunksize=1)


def said_of(value: float, bar: float | None) -> str:
    """On which side of its bar a value is, if it has one."""
    if bar is None:
        return ""
    return f" ≤ {bar:g}" if value <= bar else f" > {bar:g} **missed**"
