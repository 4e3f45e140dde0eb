"""What the relay counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

REFUSALS = (
    "bad_request",  # breaks HTTP or is ambiguous in its framing
    "bad_method",  # CONNECT
    "bad_version",  # neither HTTP/1.0 nor HTTP/1.1
    "headers_too_large",
    "headers_timeout",
    "body_too_large",
    "body_timeout",
    "send_timeout",  # took nothing of its response for too long, and was cut
    "too_many_connections",
)
UPSTREAM_ERRORS = (
    "connect",  # refused, unreachable, or a name that does not resolve
    "connect_timeout",
    "tls",
    "closed",  # closed before the first byte of a response
    "interrupted",  # closed within a response
    "invalid",  # a response that breaks HTTP
)
OUTCOMES = ("completed", "client_gone", "upstream_failed", "refused")


@dataclass(frozen=True, slots=True)
class RelayStats:
    """A snapshot. Mappings hold every known key from the start, at 0. Totals only grow."""

    exchanges: int  # requests whose head was accepted
    outcomes: Mapping[str, int]  # of ended exchanges, by ``ExchangeOutcome``
    refused: Mapping[str, int]  # requests and connections, by reason
    upstream_errors: Mapping[str, int]  # failed exchanges, by kind
    retries: int  # safe requests sent again because a pooled connection turned out closed
    observer_failures: int
    client_connections: int  # open now
    upstream_connections: int  # open now, idle ones included
    upstream_idle: int  # open and waiting in the pool


@dataclass(slots=True)
class Counters:
    """The totals behind ``RelayStats``, written by the relay's parts."""

    exchanges: int = 0
    retries: int = 0
    observer_failures: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))
    upstream_errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(UPSTREAM_ERRORS, 0))

    def snapshot(self, *, clients: int, upstreams: int, idle: int) -> RelayStats:
        """A copy that no longer changes."""
        return RelayStats(
            exchanges=self.exchanges,
            outcomes=MappingProxyType(dict(self.outcomes)),
            refused=MappingProxyType(dict(self.refused)),
            upstream_errors=MappingProxyType(dict(self.upstream_errors)),
            retries=self.retries,
            observer_failures=self.observer_failures,
            client_connections=clients,
            upstream_connections=upstreams,
            upstream_idle=idle,
        )
