"""What the parts of a relay share, and how they see the client's side."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sidecar.requests.proxy.observe import ObserverFactory
from sidecar.requests.proxy.options import RelayOptions, Upstream
from sidecar.requests.proxy.pool import Pool
from sidecar.requests.proxy.refusal import Refusal
from sidecar.requests.proxy.stats import Counters


@dataclass(slots=True)
class Context:
    """What all connections of a relay share."""

    upstream: Upstream
    options: RelayOptions
    observe: ObserverFactory
    clock: Callable[[], float]
    counters: Counters
    pool: Pool
    no_clients: asyncio.Event  # set when the last client's connection is gone
    draining: bool = False


class ClientSide(Protocol):
    """The client's connection, as an exchange sees it."""

    write: Callable[[bytes], None]  # sends; never blocks

    def reading_changed(self) -> None:
        """Whether the client's bytes are wanted may have changed."""

    def is_writable(self) -> bool:
        """Whether the client takes bytes, or holds too many unsent ones."""

    def exchange_done(self, *, keep_alive: bool) -> None:
        """The response is complete."""

    def refuse(self, refusal: Refusal, *, head_only: bool) -> None:
        """Answer in the upstream's place, count it and end the connection."""

    def cut(self, *, reset: bool) -> None:
        """End the connection within a response; ``reset`` where a plain end would look like a complete one."""
