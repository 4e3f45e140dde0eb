"""The HTTP server of the sidecar's own pages: limits, TLS and passwords.

It also says why a connection is refused or cut short.
"""

import asyncio
import base64
import hmac
import secrets
import socket
import time
from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from sidecar.log import StateLog
from sidecar.settings.files import WebConfig

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
    # Accepting failed and pauses, for example because no file descriptor is left.
    NOT_ACCEPTED = "not_accepted"
    TLS = "tls"  # a handshake failed or took too long
    MALFORMED = "malformed"  # not HTTP
    UNAUTHORIZED = "unauthorized"  # no password, or a wrong one
    INTERNAL = "internal"  # the handler raised


# pause after a wrong password, in multiples of the check's time: guessing gets a fifth of a core
_REST: Final = 4.0


class Passwords:
    """Checks credentials, one hash at a time.

    A correct password is remembered as a digest, keyed with a secret of this process, so a client
    that sends it with every request does not wait for clients that guess.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[str, bytes] = {}  # by name: the digest of the user's hash and password
        self._checks = ThreadPoolExecutor(1)

    async def is_right(self, authorization: str, users: Mapping[str, str]) -> bool:
        """Whether the header ``authorization`` has the password of one of ``users``.

        ``users`` maps names to hashes. A check that is cancelled before it starts is not made.
        """
        user, password = _credentials(authorization)
        if not user:
            return False

        # An unknown name costs as much time as a known one.
        hashed = users.get(user) or next(iter(users.values()))
        digest = hmac.digest(self._key, hashed.encode() + password, "sha256")
        if not hmac.compare_digest(self._known.get(user, b""), digest):
            slowest = max(map(_cost, users.values()))
            loop = asyncio.get_running_loop()
            if not await loop.run_in_executor(self._checks, _is_match, password, hashed, slowest):
                return False
            if user in users:
                self._known[user] = digest

        return user in users


def _cost(hashed: str) -> int:
    """The cost of a bcrypt hash: each step doubles the time of a check."""
    return int(hashed.split("$")[2])


def _is_match(password: bytes, hashed: str, slowest: int) -> bool:
    """Whether the password matches the hash.

    A wrong one takes as long as with a hash of the cost ``slowest``, so the time does not tell user
    names.
    """
    import bcrypt  # noqa: PLC0415 - saves memory: basic auth is off by default

    began = time.monotonic()
    try:
        matches = bcrypt.checkpw(password, hashed.encode())
    except ValueError:  # over 72 bytes or with a NUL: bcrypt cannot hash it
        matches = False

    if not matches:
        check = time.monotonic() - began
        time.sleep((_REST + 1) * check * 2 ** (slowest - _cost(hashed)) - check)
    return matches


def _credentials(authorization: str) -> tuple[str, bytes]:
    """The user name and password, as in RFC 7617; the name is empty if there are none."""
    scheme, _, encoded = authorization.partition(" ")
    try:
        name, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if scheme.lower() == "basic" else ("", b"")
    except ValueError:
        return "", b""


class Connection(web.RequestHandler):
    """A connection, which aiohttp closes if no complete request head arrives in ``idle_seconds``.

    aiohttp does so from 3.14.4 on. That time starts with the connection, and again with each
    response.
    """

    def __init__(self, server: web.Server, guard: "GuardedServer", client: socket.socket) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=guard.options.idle_seconds,
            # aiohttp's documentation says that None turns it off.
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,
            lingering_time=0,  # a body is not read: the connection closes after the response
        )
        self._client = client
        self._guard = guard
        # aiohttp drops its own reference on closing.
        self._wire: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is complete."""
        super().connection_made(transport)
        self._wire = self.transport

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection no longer counts."""
        self._guard.open.pop(self, None)
        super().connection_lost(exc)

    def cut(self) -> None:
        """Aborts the connection or its handshake, even if the client does not read.

        It no longer counts.
        """
        self._guard.open.pop(self, None)
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
            self._guard.refusals[Refusal.MALFORMED] += 1
        else:
            self._guard.refusals[Refusal.INTERNAL] += 1
            self._guard.faults.fault("handler", "request handler failed", reason=type(exc).__name__)

        response = web.Response(
            status=status, text=f"{status} {HTTPStatus(status).phrase}\n", headers=HEADERS
        )
        response.force_close()
        return response


_PAUSE: Final = 0.1  # seconds until the next attempt to accept after one that failed
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="specdec-sidecar", charset="UTF-8"'}


class GuardedServer:
    """Serves ``app`` on one address, from ``start`` to ``stop``; it cannot be started twice.

    ``app`` must not be frozen yet, and must not read request bodies. Nothing that a client sends is
    logged.
    """

    def __init__(
        self,
        app: web.Application,
        options: GuardOptions | None = None,
        web_config: WebConfig | None = None,
    ) -> None:
        """Without ``web_config``, it serves plain HTTP and requires no password."""
        self.options = options or GuardOptions()
        self.web_config = web_config  # may be replaced; applies to new connections and requests
        self._passwords = Passwords()
        self.refusals: Counter[str] = Counter(dict.fromkeys(Refusal, 0))
        self.faults = StateLog(structlog.get_logger("sidecar"))
        self.open: dict[Connection, None] = {}  # those open or in their handshake, the oldest first
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        # They set up accepted connections, including TLS handshakes.
        self._opening: set[asyncio.Task[None]] = set()

        app.middlewares.insert(0, self._authorized)
        app.on_response_prepare.append(_add_headers)
        # A handler ends with its connection, so the limit on connections also bounds the queue of
        # password checks.
        self._runner = web.AppRunner(
            app, shutdown_timeout=self.options.shutdown_seconds, handler_cancellation=True
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens on every address of ``host`` and returns the first as bound.

        ``::`` accepts IPv4 too.

        Raises:
            OSError: an address cannot be bound; ``stop`` closes the others.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(infos):
            dual = host == "::" and socket.has_dualstack_ipv6()
            self._listeners.append(
                socket.create_server(address, family=family, backlog=128, dualstack_ipv6=dual)
            )

        if self._runner.server is None:
            raise RuntimeError("stopped")

        server = self._runner.server
        self._accepting = [
            loop.create_task(self._accept(listener, server)) for listener in self._listeners
        ]
        bound_host, bound_port = self._listeners[0].getsockname()[:2]
        return bound_host, bound_port

    async def stop(self) -> None:
        """Stops listening, gives running handlers ``shutdown_seconds``, then aborts. Idempotent."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._accepting, self._listeners = [], []
        await self._runner.cleanup()
        for connection in list(self.open):
            connection.cut()
        await asyncio.gather(*self._opening)

    async def _accept(self, listener: socket.socket, server: web.Server) -> None:
        listener.setblocking(False)  # noqa: FBT003 - the socket's signature
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:
                self.refusals[Refusal.NOT_ACCEPTED] += 1
                await asyncio.sleep(_PAUSE)
                continue
            connection = Connection(server, self, client)
            if len(self.open) >= self.options.max_connections:
                self.refusals[Refusal.GAVE_WAY] += 1
                next(iter(self.open)).cut()
            self.open[connection] = None
            task = loop.create_task(self._open(client, connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            await asyncio.sleep(0)  # so that a flood of connections does not starve the event loop

    async def _open(self, client: socket.socket, connection: Connection) -> None:
        tls = None if self.web_config is None else self.web_config.tls
        timeout = None if tls is None else self.options.handshake_seconds
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=tls, ssl_handshake_timeout=timeout
            )
        except OSError as error:
            # Its frames refer to it and to asyncio's 256 KiB handshake buffer: in a flood these
            # would pile up until GC.
            error.__traceback__ = None
            client.close()
            connection.connection_lost(error)
            has_client_left = isinstance(error, ConnectionResetError | BrokenPipeError)
            if not has_client_left:
                self.refusals[Refusal.TLS] += 1

    @web.middleware
    async def _authorized(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        users = {} if self.web_config is None else self.web_config.users
        is_open = not users or request.path in self.options.open_paths
        authorization = request.headers.get("Authorization", "")
        if is_open or await self._passwords.is_right(authorization, users):
            return await handler(request)
        self.refusals[Refusal.UNAUTHORIZED] += 1
        return web.Response(status=401, text="unauthorized\n", headers=_CHALLENGE)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
