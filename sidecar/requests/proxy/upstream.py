"""The upstream connections and their pool: opened ahead of demand, checked before use, closed in time."""

import asyncio
import select
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from sidecar.errors import ConnectFailed
from sidecar.log import Log
from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.sockets import notice_silence

_SILENCE_SECONDS = 60.0  # after which the kernel probes whether the upstream is still there


class UpstreamUser(Protocol):
    """The exchange that a connection carries, or for which it is opened."""

    def uplink_connected(self) -> None:
        """A dial succeeded."""

    def fail(self, kind: str) -> None:
        """There is no connection; ``kind`` is a key of ``outcomes.UPSTREAM_ERRORS``."""

    def response_data(self, data: bytes) -> None:
        """Bytes of the response."""

    def upstream_ended(self, *, orderly: bool) -> None:
        """The connection has ended; ``orderly``: the upstream closed it, it was not reset."""

    def upstream_writable(self, *, writable: bool) -> None:
        """The upstream takes bytes again, or too many are unsent."""


class UpstreamConnection(asyncio.BufferedProtocol):
    """One connection; without a user it is in the pool."""

    __slots__ = (
        "_buffer",
        "_buffer_bytes",
        "_poll",
        "_pool",
        "closed",
        "expires",
        "reused",
        "transport",
        "user",
        "writable",
    )

    transport: asyncio.Transport

    def __init__(self, pool: "Pool", buffer: memoryview, buffer_bytes: int) -> None:
        self._pool = pool
        self._buffer = buffer  # to read into
        self._buffer_bytes = buffer_bytes
        self._poll: select.poll | None = None
        self.closed = False  # it has ended, or was aborted before it was connected
        self.user: UpstreamUser | None = None
        self.reused = False  # it has carried a response before
        self.expires = 0.0  # while in the pool
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.BaseProtocol``."""
        self.transport = cast("asyncio.Transport", transport)
        if self.closed:
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=self._buffer_bytes)
        socket = transport.get_extra_info("socket")
        self._poll = select.poll()
        self._poll.register(socket.fileno(), select.POLLIN)
        notice_silence(socket, _SILENCE_SECONDS)
        self._pool.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """See ``asyncio.BufferedProtocol``: one buffer for all connections, as it is emptied before the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See ``asyncio.BufferedProtocol``."""
        if self.user is not None:
            self.user.response_data(bytes(self._buffer[:nbytes]))
        else:
            self.abort()  # unsolicited bytes could be taken for the next request's response

    def eof_received(self) -> None:
        """See ``asyncio.BufferedProtocol``; an upstream that half-closes sends nothing more."""
        self._end(orderly=True)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._end(orderly=exc is None)

    def pause_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self.writable = False
        if self.user is not None:
            self.user.upstream_writable(writable=False)

    def resume_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self.writable = True
        if self.user is not None:
            self.user.upstream_writable(writable=True)

    def is_usable(self) -> bool:
        """Whether a pooled connection is still open.

        This asks the kernel: a close that the event loop has not handled yet would cost the next request.
        """
        return not self.closed and self._poll is not None and not self._poll.poll(0)

    def abort(self) -> None:
        """Close immediately, without a call to the user."""
        self.user = None
        if self._poll is None:
            self.closed = True
        elif not self.closed:
            self.transport.abort()

    def _end(self, *, orderly: bool) -> None:
        if self.closed:
            return
        self.closed = True
        self._pool.discard(self)
        user, self.user = self.user, None
        if user is not None:
            user.upstream_ended(orderly=orderly)


class Pool:
    """The idle connections, and the way to new ones."""

    def __init__(
        self,
        upstream: Upstream,
        options: ProxyOptions,
        clock: Callable[[], float],
        log: Log,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """``lost`` is called when the upstream has become unreachable."""
        self._upstream = upstream
        self._options = options
        self._clock = clock
        self._log = log
        self._lost = lost
        self._warm_size = min(options.pool_warm, options.pool_size)
        self.buffer = memoryview(bytearray(options.read_bytes))
        self.idle: list[UpstreamConnection] = []  # waiting for a request, newest last
        self.open: set[UpstreamConnection] = set()  # these and the ones in use
        self._warming: asyncio.Task[None] | None = None
        self._reachable: bool | None = None
        self._closed = False

    def add(self, connection: UpstreamConnection) -> None:
        """The connection is open."""
        self.open.add(connection)

    def discard(self, connection: UpstreamConnection) -> None:
        """The connection has ended; safe to repeat."""
        self.open.discard(connection)
        with suppress(ValueError):
            self.idle.remove(connection)

    def take(self) -> UpstreamConnection | None:
        """The most recently used idle connection that is still open."""
        while self.idle:
            connection = self.idle.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    async def connect(self) -> UpstreamConnection:
        """A new connection. Raises ``ConnectFailed``."""
        connection = UpstreamConnection(self, self.buffer, self._options.buffer_bytes)
        try:
            async with asyncio.timeout(self._options.connect_seconds):
                await self._dial(connection)
        except TimeoutError:
            raise self._failed("connect_timeout") from None
        except ssl.SSLError:
            raise self._failed("tls") from None
        except (OSError, ValueError):  # an impossible host name raises UnicodeError
            raise self._failed("connect") from None
        if connection.closed:  # uvloop may report the end before the dial returns, and never again
            raise self._failed("closed")
        if self._reachable is False:
            self._log.info("upstream reachable again")
        self._reachable = True
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose response has ended properly, if there is room."""
        connection.user = None
        connection.reused = True
        self._keep(connection, self._options.pool_idle_seconds)

    def tick(self) -> None:
        """Close connections idle for too long and open missing ones; called every ``tick_seconds``."""
        now = self._clock()
        for connection in [idle for idle in self.idle if idle.expires <= now]:
            self.idle.remove(connection)
            connection.abort()
        if len(self.idle) < self._warm_size and self._warming is None and not self._closed:
            self._warming = asyncio.get_running_loop().create_task(self._warm())

    def close(self) -> None:
        """Close the idle connections and keep none from now on; running exchanges continue."""
        self._closed = True
        if self._warming is not None:
            self._warming.cancel()
        for connection in list(self.idle):
            connection.abort()
        self.idle.clear()

    def _keep(self, connection: UpstreamConnection, seconds: float) -> None:
        if self._closed or len(self.idle) >= self._options.pool_size or not connection.writable:
            connection.abort()
            return
        connection.expires = self._clock() + seconds
        self.idle.append(connection)

    async def _dial(self, connection: UpstreamConnection) -> None:
        target = self._upstream
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: connection, target.host, target.port, ssl=target.ssl)
        except BaseException:
            # A cancelled dial must not leave a connection behind; uvloop does not report its end.
            connection.abort()
            self.discard(connection)
            raise

    async def _warm(self) -> None:
        try:
            with suppress(ConnectFailed):  # logged when the state changed; the next tick tries again
                # No more than are missing now, or a server that accepts and closes would be dialled in a loop.
                for _ in range(self._warm_size - len(self.idle)):
                    self._keep(await self.connect(), self._options.pool_fresh_seconds)
        finally:
            self._warming = None

    def _failed(self, kind: str) -> ConnectFailed:
        if self._reachable is not False:
            self._log.warning("upstream unreachable", kind=kind)
            self._lost()
        self._reachable = False
        return ConnectFailed(kind)
