"""Connections to the upstream: dialled ahead, kept, checked before use, and given up in time."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from sidecar.errors import SpecDecError
from sidecar.requests.proxy.options import RelayOptions, Upstream
from sidecar.requests.proxy.upstream import UpstreamConnection


class Log(Protocol):
    """The part of a structlog logger that the relay uses."""

    def info(self, event: str, **values: object) -> object:
        """Log something ordinary."""

    def warning(self, event: str, **values: object) -> object:
        """Log something an operator should look at."""


class ConnectFailed(SpecDecError):
    """The upstream could not be reached; ``kind`` is a key of ``RelayStats.upstream_errors``."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Pool:
    """The idle connections, newest last, and the way to new ones."""

    def __init__(self, upstream: Upstream, options: RelayOptions, clock: Callable[[], float], log: Log) -> None:
        self._upstream = upstream
        self._options = options
        self._clock = clock
        self._log = log
        self._warm_size = min(options.pool_warm, options.pool_size)
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._warming: asyncio.Task[None] | None = None
        self._up: bool | None = None
        self._closed = False

    @property
    def open_count(self) -> int:
        """Connections that stand, idle ones included."""
        return len(self._open)

    @property
    def idle_count(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    def opened(self, connection: UpstreamConnection) -> None:
        """See ``ConnectionOwner``."""
        self._open.add(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        """See ``ConnectionOwner``; safe to repeat."""
        self._open.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)

    def take(self) -> UpstreamConnection | None:
        """The idle connection used last, if one still stands."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    async def connect(self) -> UpstreamConnection:
        """A new connection. Raises ``ConnectFailed``."""
        connection = UpstreamConnection(self, self._options.buffer_bytes)
        try:
            async with asyncio.timeout(self._options.connect_seconds):
                await self._dial(connection)
        except TimeoutError:
            raise self._failed("connect_timeout") from None
        except ssl.SSLError:
            raise self._failed("tls") from None
        except (OSError, ValueError):  # a name that can't be one raises UnicodeError
            raise self._failed("connect") from None
        if connection.closed:  # by then, as uvloop may tell before the dial returns: nobody would hear of it again
            raise self._failed("closed")
        if self._up is False:
            self._log.info("relay_upstream_up")
        self._up = True
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose response has ended cleanly, if there is room."""
        connection.exchange = None
        connection.reused = True
        self._keep(connection, self._options.pool_idle_seconds)

    def tick(self) -> None:
        """Give up what has waited too long and dial what is missing; called every ``tick_seconds``."""
        now = self._clock()
        for connection in [idle for idle in self._idle if idle.expires <= now]:
            self._idle.remove(connection)
            connection.abort()
        if len(self._idle) < self._warm_size and self._warming is None and not self._closed:
            self._warming = asyncio.get_running_loop().create_task(self._warm())

    def close(self) -> None:
        """Close the idle connections and keep none from now on; running exchanges go on."""
        self._closed = True
        if self._warming is not None:
            self._warming.cancel()
        for connection in list(self._idle):
            connection.abort()
        self._idle.clear()

    def _keep(self, connection: UpstreamConnection, seconds: float) -> None:
        if self._closed or len(self._idle) >= self._options.pool_size or not connection.writable:
            connection.abort()
            return
        connection.expires = self._clock() + seconds
        self._idle.append(connection)

    async def _dial(self, connection: UpstreamConnection) -> None:
        target = self._upstream
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: connection, target.host, target.port, ssl=target.ssl)
        except BaseException:
            # A dial given up must not leave a connection behind; of its end uvloop tells nobody.
            connection.abort()
            self.lost(connection)
            raise

    async def _warm(self) -> None:
        try:
            with suppress(ConnectFailed):  # logged where it changed the state; the next tick tries again
                # No more than what is missing now, or a server that accepts and closes would be dialled in a loop.
                for _ in range(self._warm_size - len(self._idle)):
                    self._keep(await self.connect(), self._options.pool_fresh_seconds)
        finally:
            self._warming = None

    def _failed(self, kind: str) -> ConnectFailed:
        if self._up is not False:
            self._log.warning("relay_upstream_down", kind=kind)
        self._up = False
        return ConnectFailed(kind)
