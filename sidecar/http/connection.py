"""The connections of a server: aiohttp's, and no more at once than the limits allow."""

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
    """Those that are open or in their handshake; counts what is refused."""

    def __init__(self, options: GuardOptions) -> None:
        self.options = options
        self.refusals: Tally[str] = Tally(dict.fromkeys(Refusal, 0))
        self.faults = StateLog(structlog.get_logger("sidecar"))
        self.open: dict[Connection, None] = {}  # oldest first

    def add(self, new: "Connection") -> None:
        """Adds one; past the limit it takes the place of the oldest."""
        if len(self.open) >= self.options.max_connections:
            self.refusals[Refusal.GAVE_WAY] += 1
            next(iter(self.open)).cut()
        self.open[new] = None


class Connection(web.RequestHandler):
    """aiohttp, from 3.14.4 on, closes it if no whole head comes within ``idle_seconds``.

    They begin with the connection, and anew with each response.
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
        self._wire: asyncio.WriteTransport | None = None  # which aiohttp forgets when it closes it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over."""
        super().connection_made(transport)
        self._wire = self.transport

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection no longer counts."""
        self._connections.open.pop(self, None)
        super().connection_lost(exc)

    def cut(self) -> None:
        """Ends it, or its handshake, without waiting for a client that does not read; it no longer counts."""
        self._connections.open.pop(self, None)
        if self._wire is not None:
            self._wire.abort()  # nobody would notice a shutdown while aiohttp does not read
            return
        with suppress(OSError):  # the client has left
            self._client.shutdown(socket.SHUT_RDWR)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - quotes the request
    ) -> web.StreamResponse:
        """Counts a request that failed; answers and logs without quoting it, which aiohttp would do."""
        if isinstance(exc, HttpProcessingError):
            self._connections.refusals[Refusal.MALFORMED] += 1
        else:
            self._connections.refusals[Refusal.INTERNAL] += 1
            self._connections.faults.fault("handler", "request handler failed", reason=type(exc).__name__)
        response = web.Response(status=status, text=f"{status} {HTTPStatus(status).phrase}\n", headers=HEADERS)
        response.force_close()
        return response
