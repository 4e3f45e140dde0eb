"""The options of a sweep, and their limits."""

import ssl
from dataclasses import dataclass, field
from typing import Final

from sidecar.commands.sweep.workload import Level
from sidecar.errors import SettingsError
from sidecar.settings import Settings

MOST_AT_ONCE: Final = 1024
MOST_REQUESTS: Final = 100_000  # of a whole sweep, both servers together
ENDPOINTS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}  # by the command line's name


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

    ``servers`` are addresses by the argument that names them: the one to measure and its baseline, if there is one.
    ``seconds`` is for the whole sweep, which then ends with what it has measured. ``settings`` are for vLLM's pages.

    Raises:
        SettingsError: the sweep would be too many requests.
    """

    servers: dict[str, str]
    requests: RequestOptions
    prompts: tuple[str, ...]
    levels: tuple[Level, ...]
    count: int
    rounds: int
    seconds: float
    settings: Settings

    def __post_init__(self) -> None:
        if self.total > MOST_REQUESTS:
            raise SettingsError(
                [f"{self.total:,} requests are more than {MOST_REQUESTS:,}: fewer levels or --requests"]
            )

    @property
    def total(self) -> int:
        """Requests of the whole sweep, without the warm-up."""
        return len(self.levels) * self.count * self.rounds * len(self.servers)
