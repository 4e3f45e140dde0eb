"""The options of a sweep, and their limits."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.verdict import VerdictThresholds
from sidecar.engine.lines import PageLimits
from sidecar.errors import SettingsError
from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, Endpoint

HOTTEST: Final = 10.0
MOST_AT_ONCE: Final = 1024
MOST_REQUESTS: Final = 100_000  # of a whole sweep, both servers together
ENDPOINTS: Final[Mapping[str, Endpoint]] = {"chat": CHAT, "completions": COMPLETIONS}  # by the name on the command line
CAPACITY_AT_ONCE: Final = 32  # requests in flight while the capacity is measured


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


@dataclass(frozen=True, slots=True)
class Level:
    """One workload at one load."""

    workload: Workload
    load: Load

    def __str__(self) -> str:
        return f"{self.workload.name}, {self.load}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Times in seconds. ``requests`` are per level and round; every round goes through all levels.

    ``seconds`` is for the whole sweep, which then ends with what it has measured.

    Raises:
        SettingsError: a value is out of its range, or the sweep would be too many requests.
    """

    url: str
    baseline_url: str | None = None
    model: str | None = None  # None: the first that the server names
    endpoint: Endpoint = CHAT
    temperatures: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 1.0)
    mixes: tuple[Mapping[float, float], ...] = ()
    loads: tuple[Load, ...] = (Load(at_once=1), Load(at_once=8))
    requests: int = 32
    rounds: int = 1
    max_tokens: int = 128
    request_seconds: float = 120.0
    seconds: float = 1800.0
    api_key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | bool = True
    page_limits: PageLimits = field(default_factory=PageLimits)
    thresholds: VerdictThresholds = field(default_factory=VerdictThresholds)

    def __post_init__(self) -> None:
        asked = [temperature for mix in (*self.mixes, self.temperatures) for temperature in mix]
        faults = []
        if not asked or not all(0 <= one <= HOTTEST for one in asked):
            faults.append(f"--temperatures, --mix: write temperatures from 0 to {HOTTEST:g}")
        if not all(0 < weight < 1e9 for mix in self.mixes for weight in mix.values()):
            faults.append("--mix: write weights above 0, such as 0.1:50,1.0:50")
        at_once = [load.at_once for load in self.loads if load.at_once is not None]
        if not self.loads or not all(1 <= one <= MOST_AT_ONCE for one in at_once):
            faults.append(f"--concurrency, --load: write one or more from 1 to {MOST_AT_ONCE}")
        rates = [value for load in self.loads for value in (load.rate, load.share) if value is not None]
        if not all(0 < rate <= MOST_AT_ONCE for rate in rates):
            faults.append(f"--rate: write requests per second up to {MOST_AT_ONCE} or percentages of the capacity")
        if self.requests < 1 or self.max_tokens < 2 or self.rounds < 1:
            faults.append("--requests, --rounds, --max-tokens: at least 1 request of 2 tokens is needed")
        total = self.total_requests
        if total > MOST_REQUESTS:
            faults.append(f"{total:,} requests are more than {MOST_REQUESTS:,}: fewer levels or --requests")
        if faults:
            raise SettingsError(faults)

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Each temperature alone, then each mix; a mix adds its temperatures alone, for comparison."""
        alone = dict.fromkeys((*self.temperatures, *(one for mix in self.mixes for one in mix)))
        mixes = tuple(Workload(tuple(sorted(mix.items()))) for mix in self.mixes)
        return (*(Workload(((temperature, 1.0),)) for temperature in alone), *mixes)

    def levels(self, capacity: float | None) -> tuple[Level, ...]:
        """Workload by workload, from the lightest load to the heaviest; shares of ``capacity`` become rates."""
        loads = dict.fromkeys(
            load if load.share is None or capacity is None else Load(rate=load.share * capacity, share=load.share)
            for load in self.loads
        )
        ordered = sorted(loads, key=lambda load: (load.at_once or 0, load.rate or load.share or 0))
        return tuple(Level(workload, load) for workload in self.workloads for load in ordered)

    @property
    def capacity_requests(self) -> int:
        """Requests that measure the capacity; 0 if no load is a share of it."""
        is_share = any(load.share is not None for load in self.loads)
        return max(self.requests, 3 * CAPACITY_AT_ONCE) if is_share else 0

    @property
    def total_requests(self) -> int:
        """Requests of the whole sweep, without the warm-up."""
        servers = 1 if self.baseline_url is None else 2
        return (
            len(self.workloads) * len(set(self.loads)) * self.requests * self.rounds * servers + self.capacity_requests
        )
