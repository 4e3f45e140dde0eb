"""The web server of the sidecar's page, which no client can block or make grow."""

import asyncio
import errno
import socket
from collections import Counter as Tally
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from sidecar.http.access import Access
from sidecar.http.connection import Connection, Connections
from sidecar.http.hosts import is_ours
from sidecar.http.limits import HEADERS, WITH_ACCESS, GuardOptions, Refusal
from sidecar.http.passwords import Verdict

_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE: Final = 1.0  # seconds until the next attempt to accept if nothing is left
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="specdec-sidecar", charset="UTF-8"'}


class GuardedServer:
    """Serves ``app`` on one address, from ``start`` to ``stop``; it cannot be started twice.

    ``app`` must not be frozen yet, and takes no bodies. Nothing that a client sends is logged.
    """

    def __init__(self, app: web.Application, options: GuardOptions | None = None, access: Access | None = None) -> None:
        """Without ``access`` it speaks plain HTTP and asks for no password."""
        self.options = options or GuardOptions()
        self._access = access
        self._connections = Connections(self.options)
        self.refusals: Tally[str] = self._connections.refusals
        self.refusals.update({reason: 0 for reason in Refusal if access is not None or reason not in WITH_ACCESS})
        self._listeners: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()  # those that accept a client, with TLS their handshakes
        app.middlewares.insert(0, self._middleware())
        app.on_response_prepare.append(_add_headers)
        self._runner = web.AppRunner(app, shutdown_timeout=self.options.shutdown_seconds)

    @property
    def connections(self) -> int:
        """How many are open, or in their handshake."""
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
        self._tasks = [loop.create_task(self._accept(listener)) for listener in self._listeners]
        if self._access is not None:
            self._tasks.append(loop.create_task(self._access.watch()))
        bound_host, bound_port = self._listeners[0].getsockname()[:2]
        return bound_host, bound_port

    async def stop(self) -> None:
        """Stops listening, gives running handlers ``shutdown_seconds``, then aborts. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._tasks, self._listeners = [], []
        await self._runner.cleanup()
        for connection in list(self._connections.open):
            connection.cut()
        await asyncio.gather(*self._opening)

    async def _accept(self, listener: socket.socket) -> None:
        listener.setblocking(False)  # noqa: FBT003 - the socket's signature
        loop, faults = asyncio.get_running_loop(), self._connections.faults
        while True:
            try:
                client, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _EXHAUSTED:  # else this client is gone already
                    self.refusals[Refusal.NO_DESCRIPTORS] += 1
                    faults.fault("accept", "cannot accept connections", reason=str(error.strerror))
                    await asyncio.sleep(_PAUSE)
                continue
            faults.clear("accept", "accepting connections again")
            self._admit(client, str(address[0]))

    def _admit(self, client: socket.socket, address: str) -> None:
        if self._runner.server is None:
            raise RuntimeError("not started")
        connection = Connection(self._runner.server, self._connections, client, address)
        if not self._connections.admit(connection):
            client.close()
            return
        task = asyncio.get_running_loop().create_task(self._open(client, connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket, connection: Connection) -> None:
        tls = None if self._access is None else self._access.tls
        timeout = None if tls is None else self.options.header_seconds
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=tls, ssl_handshake_timeout=timeout
            )
        except OSError as error:
            # Its frames refer to it, and to asyncio's 256 KiB for a handshake: a flood would wait for the collector.
            error.__traceback__ = None
            client.close()
            connection.connection_lost(error)
            if not isinstance(error, ConnectionResetError | BrokenPipeError):  # those of a client that disconnects
                self.refusals[Refusal.TLS] += 1

    def _middleware(self) -> Middleware:
        @web.middleware
        async def serving(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            if not isinstance(connection, Connection):
                raise TypeError
            connection.serving()
            try:
                return await self._refused(request, connection.address) or await handler(request)
            finally:
                connection.waiting()

        return serving

    async def _refused(self, request: web.Request, address: str) -> web.Response | None:
        """The answer to a request that is not served; None to any other."""
        if request.body_exists:
            return self._refuse(Refusal.MALFORMED, 413, "no body is taken")
        if not is_ours(request.headers.get("Host", ""), self.options.allowed_hosts):
            return self._refuse(Refusal.HOST, 421, "unknown host: see the setting allowed_hosts")
        if self._access is None or self._access.passwords is None or request.path in self.options.open_paths:
            return None
        match await self._access.passwords.check(request.headers.get("Authorization", ""), address):
            case Verdict.GRANTED:
                return None
            case Verdict.WRONG:
                return self._refuse(Refusal.UNAUTHORIZED, 401, "unauthorized", _CHALLENGE)
            case Verdict.BUSY:
                text = "too many passwords to check"
                return self._refuse(Refusal.TOO_MANY_PASSWORDS, 429, text, {"Retry-After": "1"})

    def _refuse(self, reason: Refusal, status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
        self.refusals[reason] += 1
        response = web.Response(status=status, text=f"{text}\n", headers=headers)
        if status == 413:
            response.force_close()  # rather than read the body
        return response


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers[name] = value
