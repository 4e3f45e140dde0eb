"""A small web server that no client can block: deadlines for heads and idle connections, limits on connections.

A connection past a limit takes the place of the one that has been idle longest, preferably of one whose response is
sent: of its own address if that has ``max_per_address``, else of any but loopback's, which have their own places, for
probes and a local browser.
"""

import asyncio
import logging
from collections import Counter as Tally
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from sidecar.http.access import Access
from sidecar.http.connection import Connection
from sidecar.http.hosts import ANY, is_ours
from sidecar.http.listener import NO_DESCRIPTORS, Listener
from sidecar.http.listener import TLS as TLS_FAILED
from sidecar.http.passwords import Verdict

_log = logging.getLogger(__name__)

_HEADERS: Final = {
    "Server": "specdec-sidecar",  # aiohttp's own has its version and Python's
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="specdec-sidecar", charset="UTF-8"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Limits of a guarded server; times are seconds."""

    header_seconds: float = 10.0  # from a head's first byte (or the connection's start) to its last
    idle_seconds: float = 75.0  # to read a response and begin the next request
    linger_seconds: float = 2.0  # to continue reading a body after its response was sent
    shutdown_seconds: float = 2.0  # for running handlers when the server stops
    max_connections: int = 64  # open at once, without loopback's
    max_per_address: int = 16  # open at once from one address, loopback included
    allowed_hosts: frozenset[str] = frozenset({ANY})  # names besides those that ``hosts.is_ours`` knows
    open_paths: frozenset[str] = frozenset()  # paths that need no password


class Refusal(StrEnum):
    """Why a connection or a request was refused or cut short."""

    TOO_MANY_CONNECTIONS = "too_many_connections"  # closed immediately: no open connection is idle
    GAVE_WAY = "gave_way"  # idle the longest, and closed for a new connection
    TIMEOUT = "timeout"  # cut at a deadline; closing an idle connection is not counted
    MALFORMED = "malformed"  # not HTTP; aiohttp answers 400
    INTERNAL = "internal"  # the handler raised; aiohttp answers 500
    HOST = "host"  # the request names a host that is not ours
    TLS = TLS_FAILED
    NO_DESCRIPTORS = NO_DESCRIPTORS
    UNAUTHORIZED = "unauthorized"  # no password, or a wrong one
    TOO_MANY_PASSWORDS = "too_many_passwords"  # too many to check at the same time


_WITH_ACCESS: Final = frozenset({Refusal.TLS, Refusal.UNAUTHORIZED, Refusal.TOO_MANY_PASSWORDS})


class GuardedServer:
    """Serves ``app`` on one address, from ``start`` to ``stop``; it cannot be started twice.

    ``app`` must not be frozen yet. Bodies arrive as they were sent: the handler must limit and decompress them.
    Nothing that a client sends is logged: neither access lines nor aiohttp's tracebacks, which quote the request.
    """

    def __init__(self, app: web.Application, options: GuardOptions | None = None, access: Access | None = None) -> None:
        """Without ``access`` it speaks plain HTTP and asks for no password."""
        self.options = options or GuardOptions()
        self._access = access
        self.refusals: Tally[str] = Tally(
            {reason: 0 for reason in Refusal if access is not None or reason not in _WITH_ACCESS}
        )
        self._connections: dict[asyncio.BaseProtocol, Connection] = {}
        self._listener: Listener | None = None
        app.middlewares.insert(0, self._middleware())
        app.on_response_prepare.append(_add_headers)
        self._logger = _Faults(self.refusals).logger
        self._runner = web.AppRunner(app, logger=self._logger, shutdown_timeout=self.options.shutdown_seconds)

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
        heads, idle = self.options.header_seconds, self.options.idle_seconds
        listener = Listener(lambda: Connection(self, heads, idle), self._access, heads, self._refuse)
        try:
            address = await listener.start(host, port)
        except OSError:
            await self._runner.cleanup()
            raise
        self._listener = listener
        return address

    async def stop(self) -> None:
        """Stops listening, gives running handlers ``shutdown_seconds``, then aborts. Idempotent."""
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        await self._runner.cleanup()
        for connection in list(self._connections.values()):
            connection.cut()

    def admit(self, connection: Connection) -> asyncio.Protocol | None:
        """Aiohttp's protocol for a new connection; None if the limits allow no more."""
        server = self._runner.server
        if server is None or not self._has_place(connection):
            self.refusals[Refusal.TOO_MANY_CONNECTIONS] += 1
            return None
        protocol = _RequestHandler(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # its documentation says that None turns it off
            logger=self._logger,
            auto_decompress=False,
            keepalive_timeout=self.options.idle_seconds,
            lingering_time=self.options.linger_seconds,
        )
        self._connections[protocol] = connection
        return protocol

    def timed_out(self) -> None:
        """Counts a connection that was cut at its deadline."""
        self.refusals[Refusal.TIMEOUT] += 1

    def _refuse(self, reason: str) -> None:
        self.refusals[reason] += 1

    def _has_place(self, connection: Connection) -> bool:
        """Whether the limits allow another connection, if need be by closing the one idle longest."""
        others = list(self._connections.values())
        holders = [other for other in others if other.address == connection.address]
        if len(holders) < self.options.max_per_address:
            holders = [other for other in others if not other.is_loopback]
            if connection.is_loopback or len(holders) < self.options.max_connections:
                return True
        idle = [other for other in holders if not other.is_serving]
        if not idle:
            return False
        self.refusals[Refusal.GAVE_WAY] += 1
        min(idle, key=lambda other: (other.is_sending, other.idle_since)).cut()
        return True

    def forget(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection of ``protocol`` is gone."""
        self._connections.pop(protocol, None)

    def _middleware(self) -> Middleware:
        @web.middleware
        async def serving(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not is_ours(request.headers.get("Host", ""), self.options.allowed_hosts):
                self.refusals[Refusal.HOST] += 1
                return web.Response(status=421, text="unknown host: see the setting allowed_hosts\n")
            connection = self._connections.get(request.protocol)
            if connection is None:  # the client left before its request was handled
                return await handler(request)
            connection.serving()
            try:
                response = await self._refused(request, connection.address) or await handler(request)
            except web.HTTPException as found:
                _end_if_unread(request, connection, found)
                raise
            finally:
                connection.waiting()
            _end_if_unread(request, connection, response)
            return response

        return serving

    async def _refused(self, request: web.Request, address: str) -> web.Response | None:
        """The answer to a request without the right password; None to any other."""
        if self._access is None or self._access.passwords is None or request.path in self.options.open_paths:
            return None
        await self._access.refresh()
        match await self._access.passwords.check(request.headers.get("Authorization", ""), address):
            case Verdict.GRANTED:
                return None
            case Verdict.WRONG:
                self.refusals[Refusal.UNAUTHORIZED] += 1
                return web.Response(status=401, text="unauthorized\n", headers=_CHALLENGE)
            case Verdict.BUSY:
                self.refusals[Refusal.TOO_MANY_PASSWORDS] += 1
                return web.Response(status=429, text="too many passwords to check\n", headers={"Retry-After": "1"})


def _end_if_unread(request: web.Request, connection: Connection, response: web.StreamResponse) -> None:
    """Makes a response to a request whose body is not there yet the connection's last."""
    if not request.content.is_eof():
        connection.discard()
        response.force_close()


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers[name] = value


class _RequestHandler(web.RequestHandler):
    """Answers malformed requests and failed handlers with only the status: aiohttp's message quotes the request."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # logs, which counts it
        response = web.Response(status=status, text=f"{status} {HTTPStatus(status).phrase}\n", headers=_HEADERS)
        response.force_close()
        return response


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
