"""What a sweep is asked to do, and its bounds."""

import ssl
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sidecar.analysis.verdict import VerdictThresholds
from sidecar.engine.lines import PageLimits
from sidecar.errors import SettingsError
from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, Endpoint

HOTTEST: Final = 10.0
MOST_AT_ONCE: Final = 1024
MOST_REQUESTS: Final = 100_000  # of a whole sweep, both servers together


class Level(NamedTuple):
    """One temperature at one load: ``at_once`` requests in flight."""

    temperature: float
    at_once: int


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Times in seconds. ``requests`` a level; ``seconds`` for the whole sweep, after which it ends with what it has.

    Raises:
        SettingsError: a value is out of its range, or it would be too many requests.
    """

    url: str
    baseline_url: str | None = None
    model: str | None = None  # None: the first that the server names
    endpoint: Endpoint = CHAT
    temperatures: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 1.0)
    at_once: tuple[int, ...] = (1, 8)
    requests: int = 32
    max_tokens: int = 128
    request_seconds: float = 120.0
    seconds: float = 1800.0
    api_key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | bool = True
    page_limits: PageLimits = field(default_factory=PageLimits)
    thresholds: VerdictThresholds = field(default_factory=VerdictThresholds)

    def __post_init__(self) -> None:
        faults = []
        if not self.temperatures or not all(0 <= one <= HOTTEST for one in self.temperatures):
            faults.append(f"--temperatures: write one or more from 0 to {HOTTEST:g}")
        if not self.at_once or not all(1 <= one <= MOST_AT_ONCE for one in self.at_once):
            faults.append(f"--concurrency: write one or more from 1 to {MOST_AT_ONCE}")
        if self.requests < 1 or self.max_tokens < 2:
            faults.append("--requests, --max-tokens: at least 1 request of 2 tokens is needed")
        if self.endpoint not in (CHAT, COMPLETIONS):
            faults.append("--endpoint: write chat or completions")
        servers = 1 if self.baseline_url is None else 2
        total = len(self.levels) * self.requests * servers
        if total > MOST_REQUESTS:
            faults.append(f"{total:,} requests are more than {MOST_REQUESTS:,}: fewer levels or --requests")
        if faults:
            raise SettingsError(faults)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Temperature by temperature, from the lightest load to the heaviest."""
        loads = sorted(set(self.at_once))
        return tuple(Level(temperature, load) for temperature in dict.fromkeys(self.temperatures) for load in loads)
