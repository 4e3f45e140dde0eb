"""A small web server that no client can block: deadlines for heads and idle connections, a limit on connections.

aiohttp alone never closes the connection of a client that sends half a head, or nothing, or does not read its response
(measured on 3.14). Here each connection's protocol is wrapped in one with two states. While a handler runs there is no
deadline: limiting the body is up to the handler. Otherwise there is one: ``header_seconds`` from the connection's or
the next request's first byte until its handler starts, and ``idle_seconds`` after a handler has returned, within which
the client must read the response and begin the next request.
"""

import asyncio
import logging
from collections import Counter as Tally
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Limits of a guarded server; times are seconds."""

    header_seconds: float = 10.0  # from a head's first byte (or the connection's start) to its last
    idle_seconds: float = 75.0  # to read a response and begin the next request
    linger_seconds: float = 2.0  # to go on reading a body after its response was sent
    shutdown_seconds: float = 2.0  # for running handlers when the server stops
    max_connections: int = 64  # open at once; a further one is closed without a response


class Refusal(StrEnum):
    """Why a connection or a request got nothing, or less than it asked for."""

    TOO_MANY_CONNECTIONS = "too_many_connections"  # closed at once
    TIMEOUT = "timeout"  # cut at a deadline; closing an idle connection is not counted
    MALFORMED = "malformed"  # not HTTP; aiohttp answers 400
    INTERNAL = "internal"  # the handler raised; aiohttp answers 500


class GuardedServer:
    """Serves ``app`` on one address, from ``start`` to ``stop``; it cannot be started twice.

    ``app`` must not be frozen yet. Bodies arrive as they were sent: whoever reads one limits and decompresses it.
    Nothing that a client sends is logged: neither access lines nor aiohttp's tracebacks, which quote the request.
    """

    def __init__(self, app: web.Application, options: GuardOptions | None = None) -> None:
        self.options = options or GuardOptions()
        self.refusals: Tally[str] = Tally(dict.fromkeys(Refusal, 0))
        self._connections: dict[asyncio.BaseProtocol, _Connection] = {}
        self._listener: asyncio.Server | None = None
        app.middlewares.insert(0, self._middleware())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_Faults(self.refusals).logger,
            auto_decompress=False,
            keepalive_timeout=self.options.idle_seconds,
            lingering_time=self.options.linger_seconds,
            shutdown_timeout=self.options.shutdown_seconds,
        )

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens on ``host`` and ``port`` (0: any free one) and returns both as bound.

        Raises:
            OSError: the address cannot be bound.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(lambda: _Connection(self), host, port)
        except OSError:
            await self._runner.cleanup()
            raise
        self._listener = listener
        bound_host, bound_port = listener.sockets[0].getsockname()[:2]
        return bound_host, bound_port

    async def stop(self) -> None:
        """Stops listening, gives running handlers ``shutdown_seconds``, then aborts. Idempotent."""
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        await self._runner.cleanup()
        for connection in list(self._connections.values()):
            connection.cut()

    def admit(self, connection: "_Connection") -> asyncio.Protocol | None:
        """Aiohttp's protocol for a new connection; None if there are too many."""
        server = self._runner.server
        if server is None or len(self._connections) >= self.options.max_connections:
            self.refusals[Refusal.TOO_MANY_CONNECTIONS] += 1
            return None
        protocol = server()
        self._connections[protocol] = connection
        return protocol

    def forget(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection of ``protocol`` is gone."""
        self._connections.pop(protocol, None)

    def _middleware(self) -> Middleware:
        @web.middleware
        async def serving(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = self._connections.get(request.protocol)
            if connection is None:  # the client left before its request was handled
                return await handler(request)
            connection.serving()
            try:
                return await handler(request)
            finally:
                connection.waiting()

        return serving


class _Connection(asyncio.Protocol):
    """Forwards everything to aiohttp's protocol and cuts the connection at its deadline."""

    def __init__(self, server: GuardedServer) -> None:
        self._server = server
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_serving = False
        self._is_head_begun = True  # a new connection owes its first head from the start

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, for uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._inner = self._server.admit(self)
        if self._inner is None:
            self._transport.abort()
            return
        self._inner.connection_made(transport)
        self._arm(self._server.options.header_seconds)

    def data_received(self, data: bytes) -> None:
        if not self._is_serving and not self._is_head_begun:
            self._is_head_begun = True
            self._arm(self._server.options.header_seconds)
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._inner is not None:
            self._server.forget(self._inner)
            self._inner.connection_lost(exc)
            self._inner = None

    def serving(self) -> None:
        """A handler starts: there is no deadline until it returns."""
        self._is_serving = True
        self._disarm()

    def waiting(self) -> None:
        """The handler has returned."""
        self._is_serving = False
        self._is_head_begun = False
        if self._inner is not None:
            self._arm(self._server.options.idle_seconds)

    def cut(self) -> None:
        """Aborts: a close that flushes would wait for a client that does not read."""
        if self._transport is not None:
            self._transport.abort()

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self._transport is None:
            return
        if self._is_head_begun or self._transport.get_write_buffer_size():
            self._server.refusals[Refusal.TIMEOUT] += 1
        self._transport.abort()


class _Faults(logging.Handler):
    """Replaces aiohttp's log: counts, and logs the class of an unexpected error when it changes."""

    def __init__(self, refusals: Tally[str]) -> None:
        super().__init__(logging.WARNING)
        self._refusals = refusals
        self._last_failure = ""
        # getLogger would forward aiohttp's messages to the root's handlers.
        self.logger = logging.Logger("guard", logging.WARNING)  # noqa: LOG001 - see above
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0] if record.exc_info else None
        if kind is not None and issubclass(kind, HttpProcessingError | web.RequestPayloadError):
            self._refusals[Refusal.MALFORMED] += 1
            return
        self._refusals[Refusal.INTERNAL] += 1
        failure = "no exception" if kind is None else kind.__name__
        if failure != self._last_failure:
            self._last_failure = failure
            _log.error("a request failed in its handler: %s", failure)
