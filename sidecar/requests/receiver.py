"""The sidecar's end of the plug-in's socket: receives what any number of engines send.

Whoever can open the socket may write to it, and can do no more than that: packets are read one of each connection in
turn, and checked against types, ranges and limits before they count.
"""

import asyncio
import errno
import socket
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sidecar.log import Log, StateLog
from sidecar.requests.messages import MAX_PACKET_BYTES, AnotherVersion, Malformed, Packet, PluginSink, read_packet
from sidecar.requests.socket_file import inode, listen, remove

MALFORMED: Final = "malformed"  # no packet of the format, or one without a hello before it; its sender is disconnected
INCONSISTENT: Final = "inconsistent"  # more accepted than drafted
TOO_MANY_CONNECTIONS: Final = "too_many_connections"  # the one silent longest was disconnected for another
NO_DESCRIPTORS: Final = "no_descriptors"  # accepting paused; engines wait
DROP_REASONS: Final = frozenset({MALFORMED, INCONSISTENT, TOO_MANY_CONNECTIONS, NO_DESCRIPTORS})
"""Every reason that a ``PluginReceiver`` gives its sink."""

_LAST_PACKETS: Final = 16_384  # of a connection, read when stopping; a socket's buffer holds less
_ACCEPTS_A_TURN: Final = 16
_ACCEPT_PAUSE: Final = 1.0  # seconds
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


@dataclass(slots=True)
class _Connection:
    """One engine's connection."""

    number: int
    heard: int = 0  # the number of its last packet among all packets; 0: none yet
    unreadable: bool = False  # what it sends is of another version, and ignored


class PluginReceiver:
    """Listens on a Unix SEQPACKET socket at ``path`` in an ``async with`` block, and delivers to ``sink``.

    Where it cannot listen, ``problem`` says why, and it tries again every ``look_every`` seconds; so is the socket's
    file restored when it is gone. A connection past ``max_connections`` replaces the one silent longest, whose engine
    may connect again.
    """

    def __init__(
        self, path: Path, sink: PluginSink, log: Log, *, max_connections: int = 32, look_every: float = 5.0
    ) -> None:
        self.problem = ""
        self._path = path
        self._sink = sink
        self._faults = StateLog(log)
        self._max_connections = max_connections
        self._look_every = look_every
        self._listener: socket.socket | None = None
        self._inode = 0
        self._numbers = count(1)
        self._packets = count(1)
        self._buffer = bytearray(MAX_PACKET_BYTES + 1)
        self._connections: dict[socket.socket, _Connection] = {}
        self._stopping = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._look()
        self._looking = asyncio.create_task(self._keep_looking(), name="plug-in's socket")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Reads what has arrived, and disconnects; that the engines are gone is not told."""
        self._stopping.set()
        if self._looking is not None:
            await self._looking
        self._accept_some()
        self._unlisten()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # from here on, the engine notices that no one reads
            for _ in range(_LAST_PACKETS):
                if connection not in self._connections or not self._read(connection):
                    break
                await asyncio.sleep(0)
            if connection in self._connections:
                self._close(connection)
        await asyncio.to_thread(remove, self._path, self._inode)

    async def _keep_looking(self) -> None:
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._look_every)
                return
            await self._look()

    async def _look(self) -> None:
        """Listens, unless it does; connections stay when the socket's file has to be made again."""
        if self._inode and await asyncio.to_thread(inode, self._path) == self._inode:
            return
        try:
            listener, self._inode = await asyncio.to_thread(listen, self._path)
        except OSError as error:
            self.problem = error.strerror or str(error)
            self._faults.fault(
                "listen",
                "cannot listen for the plug-in, so there is no split by temperature; set SPECDEC_PLUGIN__SOCKET",
                reason=self.problem,
                socket=str(self._path),
            )
            return
        self.problem = ""
        self._faults.clear("listen", "listening for the plug-in", socket=str(self._path))
        self._unlisten()
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept_some)

    def _unlisten(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept_some(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            if self._listener is None:
                return
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                self._faults.clear("accept", "accepting connections again")
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause_accepting(self._listener, str(error.strerror))
                    return
                continue  # this one failed before it was accepted
            self._accept(connection)

    def _pause_accepting(self, listener: socket.socket, problem: str) -> None:
        """Connections wait in the backlog, and what is sent on them in their buffers."""
        self._faults.fault("accept", "cannot accept connections", reason=problem)
        self._sink.dropped(NO_DESCRIPTORS, 1)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(_ACCEPT_PAUSE, self._go_on_accepting, listener)

    def _go_on_accepting(self, listener: socket.socket) -> None:
        if listener is self._listener:
            asyncio.get_running_loop().add_reader(listener, self._accept_some)

    def _accept(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the socket's signature
        if len(self._connections) >= self._max_connections:
            self._sink.dropped(TOO_MANY_CONNECTIONS, 1)
            self._close(min(self._connections, key=lambda one: self._connections[one].heard))
        self._connections[connection] = _Connection(next(self._numbers))
        # The event loop calls the readers of all connections that have something, each once, then does its other work.
        asyncio.get_running_loop().add_reader(connection, self._read, connection)

    def _read(self, connection: socket.socket) -> bool:
        """Reads a packet; returns whether there may be more."""
        try:
            size = connection.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError:
            size = 0
        if size and self._take(self._connections[connection], size):
            return True
        self._close(connection)
        return False

    def _take(self, connection: _Connection, size: int) -> bool:
        """Takes the packet in the buffer; False if its sender is to be disconnected."""
        if not connection.unreadable:
            packet: Packet | None = None
            try:
                packet = read_packet(self._buffer[:size])
            except AnotherVersion as other:
                connection.unreadable, packet = True, Packet(1)
                self._sink.unreadable(connection.number, other.plugin, other.version)
            except Malformed:
                pass
            is_first = not (connection.heard or connection.unreadable)
            if packet is None or (is_first and packet.hello is None):
                self._sink.dropped(MALFORMED, 1)
                return False
            self._deliver(connection.number, packet)
        connection.heard = next(self._packets)
        return True

    def _deliver(self, number: int, packet: Packet) -> None:
        if packet.hello is not None:
            self._sink.hello(number, packet.hello)
        if packet.tick is not None:
            if packet.tick.adds_up:
                self._sink.tick(number, packet.tick)
            else:
                self._sink.dropped(INCONSISTENT, 1)
        for request in packet.done:
            if request.adds_up:
                self._sink.finished(number, request)
            else:
                self._sink.dropped(INCONSISTENT, 1)

    def _close(self, connection: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(connection)
        connection.close()
        known = self._connections.pop(connection)
        if known.heard and not self._stopping.is_set():
            self._sink.closed(known.number)
