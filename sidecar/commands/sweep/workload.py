"""What a sweep measures: a workload at a load."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``at_once`` requests in flight (closed loop), or arrivals at ``rate`` per second (open loop, Poisson).

    ``share`` is the rate as a share of the server's capacity: the requests per second that it can serve.
    """

    at_once: int | None = None
    rate: float | None = None
    share: float | None = None

    def __str__(self) -> str:
        if self.at_once is not None:
            return f"{self.at_once} at once"
        rate = "" if self.rate is None else f"{self.rate:.3g}/s"
        return rate if self.share is None else f"{rate} ({self.share:.0%})".lstrip()

    def arrivals(self, requests: int) -> list[float]:
        """Seconds from the first request to each: a Poisson process, the same in every run."""
        random = Random(0)  # noqa: S311 - simulated arrivals
        return [0.0, *accumulate(random.expovariate(self.rate or 1.0) for _ in range(requests - 1))]


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
        """What it is, in words."""
        return f"{'mix' if self.temperature is None else 'temperature'} {self}"

    @property
    def temperature(self) -> float | None:
        """The only temperature; None for a mix."""
        return self.weights[0][0] if len(self.weights) == 1 else None

    def spread(self, requests: int) -> Sequence[float]:
        """A temperature for each request, by the weights, in an order that is mixed and the same in every run."""
        total = sum(weight for _, weight in self.weights)
        bounds, reached = [], 0.0
        for temperature, weight in self.weights:
            reached += weight
            bounds.append((reached / total * requests, temperature))
        found = [next((one for bound, one in bounds if i + 0.5 <= bound), bounds[-1][1]) for i in range(requests)]
        Random(0).shuffle(found)  # noqa: S311 - a reproducible order
        return found


@dataclass(frozen=True, slots=True)
class Level:
    """One workload at one load."""

    workload: Workload
    load: Load

    def __str__(self) -> str:
        return f"{self.workload.name}, {self.load}"
