"""The connections of the sidecar's HTTP server, and the reasons for refusing or aborting one."""

import asyncio
import socket
from collections import Counter
from contextlib import suppress
from enum import StrEnum
from http import HTTPStatus
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sidecar.log import StateLog

HEADERS: Final = {
    "Server": "specdec-sidecar",  # aiohttp's default reveals its version and Python's
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Sent with every response."""


class Refusal(StrEnum):
    """Why a connection or a request was refused or aborted."""

    GAVE_WAY = "gave_way"  # the oldest connection, closed to make room for a new one
    # Accepting failed and pauses, for example since no file descriptor is left.
    NOT_ACCEPTED = "not_accepted"
    TLS = "tls"  # a handshake failed or took too long
    MALFORMED = "malformed"  # not HTTP
    UNAUTHORIZED = "unauthorized"  # no password, or a wrong one
    INTERNAL = "internal"  # the handler raised


class Connections:
    """The connections of one server, at most ``limit``, and how many were refused and why."""

    def __init__(self, limit: int) -> None:
        self.open: dict[Connection, None] = {}  # open or still in their handshake, oldest first
        self.refusals: Counter[str] = Counter(dict.fromkeys(Refusal, 0))
        self._limit = limit
        self._faults = StateLog(structlog.get_logger("sidecar"))

    def admit(self, connection: "Connection") -> None:
        """Counts a new connection as open; past the limit, the oldest one gives way to it."""
        if len(self.open) >= self._limit:
            self.refuse(Refusal.GAVE_WAY)
            oldest = next(iter(self.open))
            oldest.abort()

        self.open[connection] = None

    def forget(self, connection: "Connection") -> None:
        """The connection no longer counts as open. Idempotent."""
        self.open.pop(connection, None)

    def abort_all(self) -> None:
        """Aborts all open connections."""
        for connection in list(self.open):
            connection.abort()

    def refuse(self, reason: Refusal) -> None:
        """Counts a refusal."""
        self.refusals[reason] += 1

    def handler_failed(self, error: BaseException | None) -> None:
        """Counts a handler that raised, and logs the error's type; its text may quote a request."""
        self.refuse(Refusal.INTERNAL)
        self._faults.fault("handler", "request handler failed", reason=type(error).__name__)


class Connection(web.RequestHandler):
    """A connection that aiohttp closes if no complete request head arrives in ``idle_seconds``.

    The time starts when the connection opens, and again after each response (aiohttp 3.14.4 and
    later).
    """

    def __init__(
        self,
        server: web.Server,
        client: socket.socket,
        connections: Connections,
        *,
        idle_seconds: float,
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=idle_seconds,
            # None turns it off, according to aiohttp's documentation.
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,
            lingering_time=0,  # a body is not read: the connection closes after the response
        )
        self._client = client
        self._connections = connections
        # aiohttp drops its own reference on closing.
        self._wire: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is complete."""
        super().connection_made(transport)
        self._wire = self.transport

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection no longer counts as open."""
        self._connections.forget(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Aborts the connection or its handshake, even if the client does not read.

        It no longer counts as open.
        """
        self._connections.forget(self)
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
            self._connections.refuse(Refusal.MALFORMED)
        else:
            self._connections.handler_failed(exc)

        response = web.Response(
            status=status, text=f"{status} {HTTPStatus(status).phrase}\n", headers=HEADERS
        )
        response.force_close()
        return response
