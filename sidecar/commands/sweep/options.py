"""The options of a sweep, and their limits."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.commands.sweep.workload import Level, Load, Workload
from sidecar.errors import SettingsError
from sidecar.settings.groups import Limits, Thresholds

MOST_AT_ONCE: Final = 1024
MOST_REQUESTS: Final = 100_000  # of a whole sweep, both servers together
ENDPOINTS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}  # by the command line's name
CAPACITY_AT_ONCE: Final = 32  # requests in flight while the capacity is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How requests are sent, to either server; ``timeout`` is seconds for a whole reply."""

    model: str | None = None  # None: the first that the server names
    endpoint: str = ENDPOINTS["chat"]
    max_tokens: int = 128
    timeout: float = 120.0
    api_key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """``count`` requests per level and round; every round goes through all levels.

    ``seconds`` is for the whole sweep, which then ends with what it has measured.

    Raises:
        SettingsError: the sweep would be too many requests.
    """

    url: str
    baseline_url: str | None = None
    requests: RequestOptions = field(default_factory=RequestOptions)
    temperatures: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 1.0)
    mixes: tuple[Mapping[float, float], ...] = ()
    loads: tuple[Load, ...] = (Load(at_once=1), Load(at_once=8))
    count: int = 32
    rounds: int = 1
    seconds: float = 1800.0
    page_limits: Limits = field(default_factory=Limits)
    thresholds: Thresholds = field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        if self.total > MOST_REQUESTS:
            raise SettingsError(
                [f"{self.total:,} requests are more than {MOST_REQUESTS:,}: fewer levels or --requests"]
            )

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
        return max(self.count, 3 * CAPACITY_AT_ONCE) if is_share else 0

    @property
    def total(self) -> int:
        """Requests of the whole sweep, without the warm-up."""
        levels, servers = len(self.workloads) * len(set(self.loads)), 1 if self.baseline_url is None else 2
        return levels * self.count * self.rounds * servers + self.capacity_requests
