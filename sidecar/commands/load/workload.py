"""What a sweep measures: a workload at a load."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``at_once`` requests in flight (closed loop), or arrivals at ``rate`` per second (open loop, Poisson)."""

    at_once: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.rate:.3g}/s" if self.at_once is None else f"concurrency {self.at_once}"

    def arrivals(self, requests: int) -> list[float]:
        """Seconds from the first request to each: a Poisson process, identical in every run; 0 in a closed loop."""
        if self.rate is None:
            return [0.0] * requests
        random = Random(0)  # noqa: S311 - simulated arrivals
        return [0.0, *accumulate(random.expovariate(self.rate) for _ in range(requests - 1))]


@dataclass(frozen=True, slots=True)
class Workload:
    """Temperatures and their weights: one alone, or a mix."""

    weights: tuple[tuple[float, float], ...]

    def __str__(self) -> str:
        if self.temperature is not None:
            return f"{self.temperature:g}"
        return ",".join(f"{temperature:g}:{weight:g}" for temperature, weight in self.weights)

    @property
    def name(self) -> str:
        """The workload in words."""
        return f"{'mix' if self.temperature is None else 'temperature'} {self}"

    @property
    def temperature(self) -> float | None:
        """The only temperature; None for a mix."""
        return self.weights[0][0] if len(self.weights) == 1 else None

    def spread(self, requests: int) -> Sequence[float]:
        """A temperature for each request, by the weights, in a shuffled order that is the same in every run."""
        bounds = list(accumulate(weight for _, weight in self.weights))
        places = (bisect_left(bounds, (number + 0.5) / requests * bounds[-1]) for number in range(requests))
        temperatures = [self.weights[place][0] for place in places]
        Random(0).shuffle(temperatures)  # noqa: S311 - a reproducible order
        return temperatures


@dataclass(frozen=True, slots=True)
class SweepLevel:
    """One workload at one load."""

    workload: Workload
    load: Load

    def __str__(self) -> str:
        return f"{self.workload.name}, {self.load}"


def alone(temperature: float) -> Workload:
    """Requests of one temperature."""
    return Workload(((temperature, 1.0),))


def levels(temperatures: Iterable[float], mixes: Sequence[Workload], loads: Iterable[Load]) -> tuple[SweepLevel, ...]:
    """Each temperature alone, then each mix, from the lightest load to the heaviest.

    The temperatures of a mix are also measured alone, for comparison.
    """
    mixed = (temperature for mix in mixes for temperature, _ in mix.weights)
    workloads = (*map(alone, dict.fromkeys((*temperatures, *mixed))), *mixes)
    ordered = sorted(dict.fromkeys(loads), key=lambda load: (load.at_once or 0, load.rate or 0))
    return tuple(SweepLevel(workload, load) for workload in workloads for load in ordered)
