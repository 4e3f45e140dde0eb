"""The HTTP server: limits, TLS, and passwords checked in a thread."""

import asyncio
import base64
import hmac
import secrets
import socket
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from sidecar.http.connection import HEADERS, Connection, Connections, GuardOptions, Refusal
from sidecar.settings.files import WebConfig

_REST: Final = 4.0  # pause after a wrong password, in multiples of the check's time: guessing gets a fifth of a core


class Passwords:
    """Checks credentials, one hash at a time.

    A correct password is remembered as a digest, keyed with a secret of this process, so a client that sends it with
    every request does not wait for clients that guess.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[str, bytes] = {}  # by name: the digest of the user's hash and password
        self._checks = ThreadPoolExecutor(1)

    async def is_right(self, authorization: str, users: Mapping[str, str]) -> bool:
        """Whether the header ``authorization`` has the password of one of ``users``, which maps names to hashes.

        A check that is cancelled before it starts is not made.
        """
        user, password = _credentials(authorization)
        if not user:
            return False
        hashed = users.get(user) or next(iter(users.values()))  # an unknown name costs as much time as a known one
        digest = hmac.digest(self._key, hashed.encode() + password, "sha256")
        if not hmac.compare_digest(self._known.get(user, b""), digest):
            slowest = max(map(_cost, users.values()))
            if not await asyncio.get_running_loop().run_in_executor(self._checks, _is_match, password, hashed, slowest):
                return False
            if user in users:
                self._known[user] = digest
        return user in users


def _cost(hashed: str) -> int:
    """The cost of a bcrypt hash: each step doubles the time of a check."""
    return int(hashed.split("$")[2])


def _is_match(password: bytes, hashed: str, slowest: int) -> bool:
    """A wrong password takes as long as with a hash of the cost ``slowest``, so the time does not tell user names."""
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


_PAUSE: Final = 0.1  # seconds until the next attempt to accept after one that failed
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="specdec-sidecar", charset="UTF-8"'}


class GuardedServer:
    """Serves ``app`` on one address, from ``start`` to ``stop``; it cannot be started twice.

    ``app`` must not be frozen yet, and must not read request bodies. Nothing that a client sends is logged.
    """

    def __init__(
        self, app: web.Application, options: GuardOptions | None = None, web_config: WebConfig | None = None
    ) -> None:
        """Without ``web_config``, it serves plain HTTP and requires no password."""
        self.options = options or GuardOptions()
        self.web_config = web_config  # may be replaced; applies to new connections and requests
        self._passwords = Passwords()
        self._connections = Connections(self.options)
        self.refusals: Counter[str] = self._connections.refusals
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()  # they set up accepted connections, including TLS handshakes
        app.middlewares.insert(0, self._authorized)
        app.on_response_prepare.append(_add_headers)
        # A handler ends with its connection, so the limit on connections also bounds the queue of password checks.
        self._runner = web.AppRunner(app, shutdown_timeout=self.options.shutdown_seconds, handler_cancellation=True)

    @property
    def connections(self) -> int:
        """The number of connections that are open or in their handshake."""
        return len(self._connections.open)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens on every address of ``host`` and returns the first as bound; ``::`` accepts IPv4 too.

        Raises:
            OSError: an address cannot be bound.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(infos):
                dual = host == "::" and socket.has_dualstack_ipv6()
                self._listeners.append(socket.create_server(address, family=family, backlog=128, dualstack_ipv6=dual))
        except OSError:
            await self.stop()
            raise
        if self._runner.server is None:
            raise RuntimeError("stopped")
        server = self._runner.server
        self._accepting = [loop.create_task(self._accept(listener, server)) for listener in self._listeners]
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
        for connection in list(self._connections.open):
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
            connection = Connection(server, self._connections, client)
            self._connections.add(connection)
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
            # Its frames refer to it and to asyncio's 256 KiB handshake buffer: in a flood these would pile up until GC.
            error.__traceback__ = None
            client.close()
            connection.connection_lost(error)
            if not isinstance(error, ConnectionResetError | BrokenPipeError):  # the client disconnected
                self.refusals[Refusal.TLS] += 1

    @web.middleware
    async def _authorized(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        users = {} if self.web_config is None else self.web_config.users
        is_open = not users or request.path in self.options.open_paths
        if is_open or await self._passwords.is_right(request.headers.get("Authorization", ""), users):
            return await handler(request)
        self.refusals[Refusal.UNAUTHORIZED] += 1
        return web.Response(status=401, text="unauthorized\n", headers=_CHALLENGE)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers[name] = value
