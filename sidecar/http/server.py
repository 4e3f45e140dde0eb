"""The HTTP server of the sidecar's own pages, with TLS and passwords if they are configured."""

import asyncio
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from sidecar.http.connections import HEADERS, Connection, Connections, Refusal
from sidecar.http.passwords import Passwords
from sidecar.settings.web_config import WebConfig

_PAUSE: Final = 0.1  # seconds between a failed attempt to accept and the next one
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="specdec-sidecar", charset="UTF-8"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Limits of a guarded server; times are seconds."""

    handshake_seconds: float = 10.0
    idle_seconds: float = 75.0  # to send a complete request head
    shutdown_seconds: float = 2.0  # for running handlers when the server stops
    max_connections: int = 64  # open at the same time
    open_paths: Collection[str] = frozenset()  # paths that need no password


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
        self.web_config = web_config  # may be replaced; applies to new connections and requests
        self._options = options or GuardOptions()
        self.connections = Connections(self._options.max_connections)
        self._passwords = Passwords()
        self._listeners: list[socket.socket] = []
        # Tasks that set up accepted connections, TLS handshakes included.
        self._opening: set[asyncio.Task[None]] = set()

        app.middlewares.insert(0, self._authorized)
        app.on_response_prepare.append(_add_headers)
        # A handler ends with its connection, so the limit on connections also bounds the queue of
        # password checks.
        self._runner = web.AppRunner(
            app, shutdown_timeout=self._options.shutdown_seconds, handler_cancellation=True
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

        for listener in self._listeners:
            listener.setblocking(False)  # noqa: FBT003 - the socket's signature
            self._listen(listener, self._runner.server)

        first = self._listeners[0]
        bound_host, bound_port, *_ = first.getsockname()
        return bound_host, bound_port

    async def stop(self) -> None:
        """Stops listening, gives running handlers ``shutdown_seconds``, then aborts. Idempotent."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
            listener.close()

        self._listeners = []

        await self._runner.cleanup()
        self.connections.abort_all()
        await asyncio.gather(*self._opening)

    def _listen(self, listener: socket.socket, server: web.Server) -> None:
        if listener.fileno() != -1:  # it may have been closed during the pause
            asyncio.get_running_loop().add_reader(listener, self._accept, listener, server)

    def _accept(self, listener: socket.socket, server: web.Server) -> None:
        """Accepts just one connection, so that a flood of them does not starve the event loop.

        Not ``loop.sock_accept``: cancelled at the wrong moment, it loses an accepted connection.
        """
        loop = asyncio.get_running_loop()
        try:
            client, _ = listener.accept()
        except BlockingIOError:  # the client has already left
            return
        except OSError:
            self.connections.refuse(Refusal.NOT_ACCEPTED)
            loop.remove_reader(listener)
            loop.call_later(_PAUSE, self._listen, listener, server)
            return

        client.setblocking(False)  # noqa: FBT003 - the socket's signature
        connection = Connection(
            server, client, self.connections, idle_seconds=self._options.idle_seconds
        )
        self.connections.admit(connection)

        task = loop.create_task(self._open(client, connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket, connection: Connection) -> None:
        tls = None if self.web_config is None else self.web_config.tls
        timeout = None if tls is None else self._options.handshake_seconds
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=tls, ssl_handshake_timeout=timeout
            )
        except OSError as error:
            # The traceback's frames refer to the error and to asyncio's handshake buffer of
            # 256 KiB: in a flood, these cycles would pile up until the garbage collector runs.
            error.__traceback__ = None
            client.close()
            connection.connection_lost(error)

            has_client_left = isinstance(error, ConnectionResetError | BrokenPipeError)
            if not has_client_left:
                self.connections.refuse(Refusal.TLS)

    @web.middleware
    async def _authorized(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        users = {} if self.web_config is None else self.web_config.users
        is_open = not users or request.path in self._options.open_paths
        authorization = request.headers.get("Authorization", "")
        if is_open or await self._passwords.accepts(authorization, users):
            return await handler(request)

        self.connections.refuse(Refusal.UNAUTHORIZED)
        return web.Response(status=401, text="unauthorized\n", headers=_CHALLENGE)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
