"""A listening TCP address, with TLS if a web configuration asks for it."""

import asyncio
import socket
from collections import Counter as Tally
from collections.abc import Callable
from ssl import SSLContext
from typing import Final

from sidecar.accept_loop import AcceptLoop
from sidecar.http.access import Access
from sidecar.log import Log

NO_DESCRIPTORS: Final = "no_descriptors"  # accepting paused, since the process has no descriptor left
TLS: Final = "tls"  # a handshake failed or took too long
_MOST_HANDSHAKES: Final = 256
_PATIENCE: Final = 3.0  # seconds without a completed handshake until one has to give way; a probe waits for 5
_PACE: Final = 0.01  # seconds between two that are aborted: after a stall, others complete meanwhile
_CLOSING_SECONDS: Final = 75.0  # for the client to read the rest of the last response


class Listener:
    """Accepts connections, each with a protocol that ``protocol`` makes, from ``start`` to ``close``.

    With TLS a protocol's ``connection_made`` is called after the handshake, which may take ``seconds``. At most 256
    handshakes run at once, and further connections wait in the backlog. If no handshake is completed for 3 s, the
    oldest of the address with the most is aborted. ``refused`` is called with ``NO_DESCRIPTORS`` or ``TLS``.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        access: Access | None,
        seconds: float,
        refused: Callable[[str], None],
        log: Log | None = None,
    ) -> None:
        self._protocol = protocol
        self._access = access if access is not None and access.has_tls else None
        self._seconds = seconds
        self._refused = refused
        self._log = log
        self._loops: list[AcceptLoop] = []
        self._completed_at = 0.0  # when the latest handshake completed, by the loop's clock
        self._opening: dict[asyncio.Task[None], tuple[str, float]] = {}  # the client's address and since when, in order

    async def start(
        self, host: str, port: int, backlog: int = 128, prepare: Callable[[socket.socket], None] = lambda _: None
    ) -> tuple[str, int]:
        """Listens on every address of ``host`` and returns the first as bound; ``::`` accepts IPv4 too.

        ``prepare`` sets the sockets' options.

        Raises:
            OSError: an address cannot be bound.
        """
        listeners: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(infos):
                dual = host == "::" and socket.has_dualstack_ipv6()
                listeners.append(socket.create_server(address, family=family, backlog=backlog, dualstack_ipv6=dual))
                prepare(listeners[-1])
        except OSError:
            for listener in listeners:
                listener.close()
            raise
        self._loops = [
            AcceptLoop(one, self._open, lambda: self._refused(NO_DESCRIPTORS), self._log) for one in listeners
        ]
        bound_host, bound_port = listeners[0].getsockname()[:2]
        return bound_host, bound_port

    def close(self) -> None:
        """Stops listening and cuts connections that are not open yet. Idempotent."""
        for loop in self._loops:
            loop.close()
        self._loops = []
        for task in list(self._opening):
            task.cancel()

    def _open(self, connection: socket.socket) -> None:
        try:
            address = str(connection.getpeername()[0])
        except OSError:  # it is gone already
            connection.close()
            return
        if len(self._opening) >= _MOST_HANDSHAKES:
            oldest = self._oldest_of_busiest()
            del self._opening[oldest]
            oldest.cancel()
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._connect(connection))
        self._opening[task] = address, loop.time()
        task.add_done_callback(self._opened)
        if len(self._opening) >= _MOST_HANDSHAKES:
            _, since = self._opening[self._oldest_of_busiest()]
            left = max(since, self._completed_at) + _PATIENCE - loop.time()
            for accepting in self._loops:
                accepting.pause(max(left, _PACE))

    def _oldest_of_busiest(self) -> asyncio.Task[None]:
        """The oldest handshake of the address with the most."""
        (busiest, _), *_ = Tally(address for address, _ in self._opening.values()).most_common(1)
        return next(task for task, (address, _) in self._opening.items() if address == busiest)

    def _opened(self, task: asyncio.Task[None]) -> None:
        if self._opening.pop(task, None) is None or len(self._opening) < _MOST_HANDSHAKES - 1:
            return  # it was aborted, or nobody waits for its end
        for accepting in self._loops:
            if len(self._opening) < _MOST_HANDSHAKES:
                accepting.accept_pending()

    async def _connect(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            context: SSLContext | None = None if self._access is None else await self._access.tls()
            opening, closing = (None, None) if context is None else (self._seconds, _CLOSING_SECONDS)
            await loop.connect_accepted_socket(
                self._protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=opening,
                ssl_shutdown_timeout=closing,
            )
            self._completed_at = loop.time()
        except (OSError, asyncio.CancelledError) as error:
            connection.close()
            # A client that disconnects is not a failed handshake.
            if self._access is not None and not isinstance(error, ConnectionResetError | BrokenPipeError):
                self._refused(TLS)
