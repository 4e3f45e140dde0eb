"""The web server of the sidecar's pages: no client can block it or exhaust its memory."""

import asyncio
import socket
from collections import Counter
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from sidecar.http.connection import HEADERS, Connection, Connections, GuardOptions, Refusal
from sidecar.http.passwords import Passwords
from sidecar.settings.files import WebConfig

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
