"""What the connections of one proxy share, and how an exchange sees its client connection."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sidecar.errors import Refusal
from sidecar.requests.proxy.observer import ObserverFactory
from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.outcomes import ProxyStats
from sidecar.requests.proxy.upstream import Pool


@dataclass(slots=True)
class Context:
    """What all connections of a proxy share."""

    upstream: Upstream
    options: ProxyOptions
    observe: ObserverFactory
    clock: Callable[[], float]  # monotonic, in seconds
    counters: ProxyStats
    pool: Pool
    max_clients: int  # options.max_connections, or fewer if the process may not open enough files
    no_clients: asyncio.Event  # set when the last client connection has ended
    draining: bool = False


class ClientSide(Protocol):
    """The client connection, as an exchange sees it."""

    write: Callable[[bytes], None]  # never blocks

    def reading_changed(self) -> None:
        """Whether to read the client's bytes may have changed."""

    def is_writable(self) -> bool:
        """Whether the number of unsent bytes for the client is within its limit."""

    def exchange_done(self, *, keep_alive: bool) -> None:
        """The response is complete."""

    def refuse(self, refusal: Refusal, *, head_only: bool) -> None:
        """Answer with an error, count it and end the connection."""

    def cut(self, *, reset: bool) -> None:
        """End the connection during a response; ``reset`` if a normal close would look like a complete response."""
