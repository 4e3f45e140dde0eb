"""The sidecar's end of the plug-in's socket: receives the messages of any number of engines.

Any process that can open the socket may write to it, and can do no more than that: the receiver
checks types, ranges and limits before a packet counts. Connections take turns, one packet each.
After a packet the receiver rests in proportion to the time that the packet took: so it needs at
most a fifth of a core, whatever is sent.
"""

import asyncio
import errno
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, Self

from sidecar.log import Logger, StateLog
from sidecar.requests.messages import (
    MAX_PACKET_BYTES,
    Dropped,
    Malformed,
    PluginSink,
    Unreadable,
    read_packet,
)

# A packet was invalid, or came before a hello; its sender was disconnected.
MALFORMED: Final = "malformed"
# The connection that had been silent for longest was closed to make room for another one.
TOO_MANY_CONNECTIONS: Final = "too_many_connections"
# Accepting failed and is paused; new connections wait.
NO_DESCRIPTORS: Final = "no_descriptors"
DROP_REASONS: Final = frozenset({MALFORMED, TOO_MANY_CONNECTIONS, NO_DESCRIPTORS})
"""Every reason that a ``PluginReceiver`` passes to its sink."""

# vLLM usually runs as another user; the boundary is which containers mount the shared volume.
_MODE: Final = 0o666
_BACKLOG: Final = 64
_ACCEPT_PAUSE: Final = 1.0  # seconds
_REST: Final = 4  # seconds of rest per second that packets took
_LEAST_REST: Final = 0.002  # seconds; shorter rests are saved up


class PluginReceiver:
    """Listens on a Unix SEQPACKET socket at ``path`` and delivers to ``sink``.

    It does so within an ``async with`` block. While it cannot listen, ``problem`` says why, and it
    tries again every ``retry`` seconds. A connection past ``max_connections`` replaces the one that
    has been silent for longest, whose engine may connect again.
    """

    def __init__(
        self,
        path: Path,
        sink: PluginSink,
        log: Logger,
        *,
        max_connections: int = 32,
        retry: float = 5.0,
    ) -> None:
        self.problem = ""
        self._path = path
        self._sink = sink
        self._faults = StateLog(log)
        self._max_connections = max_connections
        self._retry = retry

        self._numbers = count(1)
        self._packets = count(1)
        self._listener: socket.socket | None = None

        # The number of each connection's last packet, by the order of arrival; 0: none yet.
        self._last_packet: dict[socket.socket, int] = {}

        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._owed = 0.0  # seconds of rest

    async def __aenter__(self) -> Self:
        await self._listen()
        self._start(self._listen_later())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes all connections, without reporting to the sink that they ended."""
        if self._listener is not None:  # first, so that no connection arrives in the meantime
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._last_packet:  # those whose tasks had not started
            connection.close()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen_later(self) -> None:
        while self._listener is None:
            await asyncio.sleep(self._retry)
            await self._listen()

    async def _listen(self) -> None:
        try:
            listener = await asyncio.to_thread(_listening, self._path)
            self._listener = listener
        except OSError as error:
            self.problem = error.strerror or str(error)
            self._faults.fault(
                "listen",
                "cannot listen for the plug-in, so there is no split by temperature; "
                "set SPECDEC_PLUGIN__SOCKET, or stop the sidecar that uses this socket",
                reason=self.problem,
                socket=str(self._path),
            )
            return

        self.problem = ""
        self._faults.clear("listen", "listening for the plug-in", socket=str(self._path))
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accepts one connection; the event loop calls this again if there are more."""
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Connections wait in the backlog, and their packets in socket buffers.
            self._faults.fault(
                "accept", "cannot accept connections", reason=error.strerror or str(error)
            )
            self._sink(0, Dropped(NO_DESCRIPTORS))
            asyncio.get_running_loop().remove_reader(listener)
            self._start(self._accept_later(listener))
            return

        self._faults.clear("accept", "accepting connections again")
        connection.setblocking(False)  # noqa: FBT003 - the socket's signature
        self._make_room()
        self._last_packet[connection] = 0
        self._start(self._read(connection))

    async def _accept_later(self, listener: socket.socket) -> None:
        await asyncio.sleep(_ACCEPT_PAUSE)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _make_room(self) -> None:
        if len(self._last_packet) >= self._max_connections:
            self._sink(0, Dropped(TOO_MANY_CONNECTIONS))
            silent = min(self._last_packet, key=self._last_packet.__getitem__)
            del self._last_packet[silent]
            with suppress(OSError):
                # Its task reads the end and drops what was pending.
                silent.shutdown(socket.SHUT_RDWR)

    async def _read(self, connection: socket.socket) -> None:
        """Delivers a connection's packets until it closes or sends one that is not valid."""
        number = next(self._numbers)
        is_first = True
        loop = asyncio.get_running_loop()

        with connection, suppress(OSError):
            while True:
                text = await loop.sock_recv(connection, MAX_PACKET_BYTES)
                has_lost_its_place = connection not in self._last_packet
                if not text or has_lost_its_place:
                    break

                is_valid = await self._take_in_turn(connection, number, text, is_first=is_first)
                if not is_valid:
                    break
                is_first = False

        self._last_packet.pop(connection, None)
        if not is_first:
            self._sink(number, None)

    async def _take_in_turn(
        self, connection: socket.socket, number: int, text: bytes, *, is_first: bool
    ) -> bool:
        """Delivers a packet and rests, while the other connections wait for their turn.

        Returns False if the sender must be disconnected.
        """
        async with self._turn:
            began = time.perf_counter()
            is_valid = self._take(number, text, is_first=is_first)

            # Before the rest, during which a new connection may replace the most silent one. This
            # one may have been replaced itself while it waited for its turn.
            if is_valid and connection in self._last_packet:
                self._last_packet[connection] = next(self._packets)

            await self._rest(time.perf_counter() - began)

        return is_valid

    async def _rest(self, seconds: float) -> None:
        """Leaves the event loop to other work, in proportion to the time that a packet took."""
        self._owed += _REST * seconds
        rest = self._owed if self._owed >= _LEAST_REST else 0.0
        self._owed -= rest
        await asyncio.sleep(rest)

    def _take(self, number: int, text: bytes, *, is_first: bool) -> bool:
        """Delivers a packet of connection ``number``; False if the sender must be disconnected."""
        try:
            packet = read_packet(text)
        except Malformed:
            packet = None

        if isinstance(packet, Unreadable):
            self._sink(number, packet)
            return True

        if packet is None or (is_first and packet.hello is None):
            self._sink(number, Dropped(MALFORMED))
            return False

        for message in (packet.hello, packet.report):
            if message is not None:
                self._sink(number, message)

        return True


def has_listener(path: Path) -> bool:
    """Whether a process listens at this socket: it takes a connection, or its queue is full."""
    if not path.is_socket():
        return False
    with _new_socket() as probe:
        return probe.connect_ex(str(path)) in {0, errno.EAGAIN}


def _listening(path: Path) -> socket.socket:
    """A socket that listens at ``path``; replaces one at which no process listens any more.

    Raises:
        OSError: something else exists or listens at ``path``, or the file system returned an error.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _new_socket() as probe:
        if path.is_socket() and probe.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()

    listener = _new_socket()
    try:
        listener.bind(str(path))
        path.chmod(_MODE)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise

    return listener


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
