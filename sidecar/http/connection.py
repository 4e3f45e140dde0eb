"""The server's connections: aiohttp's request handlers, their limits, and why one is refused or cut short."""

import asyncio
import socket
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Limits of a guarded server; times are seconds."""

    handshake_seconds: float = 10.0
    idle_seconds: float = 75.0  # to send a complete request head
    shutdown_seconds: float = 2.0  # for running handlers when the server stops
    max_connections: int = 64  # open at the same time
    open_paths: Collection[str] = frozenset()  # paths that need no password


class Refusal(StrEnum):
    """Why a connection or a request was refused or cut short."""

    GAVE_WAY = "gave_way"  # the oldest connection, closed to make room for a new one
    NOT_ACCEPTED = "not_accepted"  # accepting failed and pauses, for example because no file descriptor is left
    TLS = "tls"  # a handshake failed or took too long
    MALFORMED = "malformed"  # not HTTP
    UNAUTHORIZED = "unauthorized"  # no password, or a wrong one
    INTERNAL = "internal"  # the handler raised


class Connections:
    """The connections that are open or in their handshake; counts refusals."""

    def __init__(self, options: GuardOptions) -> None:
        self.options = options
        self.refusals: Counter[str] = Counter(dict.fromkeys(Refusal, 0))
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
