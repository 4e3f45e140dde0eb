"""The server's connections: aiohttp's request handlers, with a limit on how many are open at once."""

import asyncio
import socket
from collections import Counter as Tally
from contextlib import suppress
from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sidecar.http.limits import HEADERS, GuardOptions, Refusal
from sidecar.log import StateLog


class Connections:
    """The connections that are open or in their handshake; counts refusals."""

    def __init__(self, options: GuardOptions) -> None:
        self.options = options
        self.refusals: Tally[str] = Tally(dict.fromkeys(Refusal, 0))
        self.faults = StateLog(structlog.get_logger("sidecar"))
        self.open: dict[Connection, None] = {}  # oldest first

    def add(self, new: "Connection") -> None:
        """Adds a connection; past the limit, it replaces the oldest."""
        if len(self.open) >= self.options.max_connections:
            self.refusals[Refusal.GAVE_WAY] += 1
            next(iter(self.open)).cut()
        self.open[new] = None


class Connection(web.RequestHandler):
    """A connection, which aiohttp from 3.14.4 on closes if no complete request head arrives within ``idle_seconds``.

    That time starts with the connection, and again with each response.
    """

    def __init__(self, server: web.Server, connections: Connections, client: socket.socket) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=connections.options.idle_seconds,
            access_log=None,  # type: ignore[arg-type]  # aiohttp's documentation says that None turns it off
            auto_decompress=False,
            lingering_time=0,  # a body is not read: the connection closes after the response
        )
        self._client = client
        self._connections = connections
        self._wire: asyncio.WriteTransport | None = None  # aiohttp drops its own reference on closing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is complete."""
        super().connection_made(transport)
        self._wire = self.transport

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection no longer counts."""
        self._connections.open.pop(self, None)
        super().connection_lost(exc)

    def cut(self) -> None:
        """Aborts the connection or its handshake, even if the client does not read; it no longer counts."""
        self._connections.open.pop(self, None)
        if self._wire is not None:
            self._wire.abort()  # a shutdown would go unnoticed while aiohttp does not read
            return
        with suppress(OSError):  # the client has disconnected
            self._client.shutdown(socket.SHUT_RDWR)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - quotes the request
    ) -> web.StreamResponse:
        """Counts a failed request; responds and logs without quoting it, unlike aiohttp."""
        if isinstance(exc, HttpProcessingError):
            self._connections.refusals[Refusal.MALFORMED] += 1
        else:
            self._connections.refusals[Refusal.INTERNAL] += 1
            self._connections.faults.fault("handler", "request handler failed", reason=type(exc).__name__)
        response = web.Response(status=status, text=f"{status} {HTTPStatus(status).phrase}\n", headers=HEADERS)
        response.force_close()
        return response
