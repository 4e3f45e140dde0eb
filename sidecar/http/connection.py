"""The connections of a server: aiohttp's, each with a deadline, and no more than the limits allow.

aiohttp alone never closes the connection of a client that sends half a head, or nothing, or does not read its response
(measured on 3.14).
"""

import asyncio
import socket
from collections import Counter as Tally
from contextlib import suppress
from http import HTTPStatus
from ipaddress import IPv6Address
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sidecar.http.hosts import address_of
from sidecar.http.limits import HEADERS, GuardOptions, Refusal
from sidecar.log import StateLog

_READ_BYTES: Final = 16_384  # at a time: a body of one-byte chunks costs aiohttp's parser 0.2 ms a KiB


class Connections:
    """Those that are open or in their handshake; counts what is refused or cut."""

    def __init__(self, options: GuardOptions) -> None:
        self.options = options
        self.refusals: Tally[str] = Tally()
        self.faults = StateLog(structlog.get_logger("sidecar"))
        self.open: dict[Connection, None] = {}  # those idle longest first

    def admit(self, new: "Connection") -> bool:
        """Adds one if the limits allow it, if need be in place of the one idle longest.

        That is one of its own address if this has ``max_per_address``, else of any but loopback's, which have places
        of their own, for probes and a local browser.
        """
        holders = [other for other in self.open if other.address == new.address]
        is_full = len(holders) >= self.options.max_per_address
        if not is_full and not new.is_loopback:
            holders = [other for other in self.open if not other.is_loopback]
            is_full = len(holders) >= self.options.max_connections
        if is_full:
            idle = next((other for other in holders if not other.is_serving), None)
            self.refusals[Refusal.TOO_MANY_CONNECTIONS if idle is None else Refusal.GAVE_WAY] += 1
            if idle is None:
                return False
            idle.cut()
        self.open[new] = None
        return True


class Connection(web.RequestHandler, asyncio.BufferedProtocol):
    """Has ``header_seconds`` for its first head, and ``idle_seconds`` to take a response and to send the next head.

    While a handler runs there is no deadline.
    """

    def __init__(self, server: web.Server, connections: Connections, client: socket.socket, address: str) -> None:
        """``address`` is the client's."""
        loop = asyncio.get_running_loop()
        log = None  # aiohttp's documentation says that None turns it off
        super().__init__(server, loop=loop, access_log=log, auto_decompress=False, lingering_time=0)  # type: ignore[arg-type]
        self.address = address
        known = address_of(address)
        mapped = known.ipv4_mapped if isinstance(known, IPv6Address) else None
        self.is_loopback = known is not None and (mapped or known).is_loopback
        self.is_serving = False
        self._client = client
        self._connections = connections
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._timer: asyncio.TimerHandle | None = None
        self._wire: asyncio.WriteTransport | None = None  # which aiohttp forgets when it closes it
        self._is_new = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the deadline for the first head."""
        super().connection_made(transport)
        self._wire = self.transport
        self._set_deadline(self._connections.options.header_seconds)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection no longer counts."""
        self._set_deadline(None)
        self._connections.open.pop(self, None)
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """The buffer to read into."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Forwards what was read."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def serving(self) -> None:
        """A handler starts."""
        self.is_serving, self._is_new = True, False
        self._set_deadline(None)

    def waiting(self) -> None:
        """The handler has returned; of those idle now, this one gives way last."""
        self.is_serving = False
        self._set_deadline(self._connections.options.idle_seconds)
        if self in self._connections.open:
            self._connections.open[self] = self._connections.open.pop(self)

    def cut(self) -> None:
        """Aborts, since closing would wait for a client that does not read; the connection no longer counts."""
        self._connections.open.pop(self, None)
        if self._wire is not None:
            self._wire.abort()
        else:
            with suppress(OSError):  # the client has left
                self._client.shutdown(socket.SHUT_RDWR)  # ends the handshake; asyncio may not if that is cancelled

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - quotes the request
    ) -> web.StreamResponse:
        """Counts a request that failed, and answers with only the status."""
        self.log_exception(exc_info=exc)
        response = web.Response(status=status, text=f"{status} {HTTPStatus(status).phrase}\n", headers=HEADERS)
        response.force_close()
        return response

    def log_exception(self, *_: object, exc_info: BaseException | None = None, **__: object) -> None:
        """Counts an error; logs only its class, while aiohttp's log quotes the request."""
        if isinstance(exc_info, HttpProcessingError):
            self._connections.refusals[Refusal.MALFORMED] += 1
            return
        self._connections.refusals[Refusal.INTERNAL] += 1
        self._connections.faults.fault("handler", "a request failed in its handler", reason=type(exc_info).__name__)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        is_open = self.transport is not None and seconds is not None
        self._timer = asyncio.get_running_loop().call_later(seconds or 0.0, self._expire) if is_open else None

    def _expire(self) -> None:
        if self._is_new or self.writing_paused:
            self._connections.refusals[Refusal.TIMEOUT] += 1
        self.cut()
