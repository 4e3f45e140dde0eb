"""The sidecar's end of the middleware's socket: takes events from any number of API-server processes.

The socket stands in a volume that two containers share, often with different users, so by default anyone may connect:
the volume's mounts are the boundary, not the file's mode. It costs little to trust so far, since a stranger can only
write, reads nothing, and what it writes is checked against types, ranges and limits before it counts. Where both
containers share a group (``fsGroup``), set ``mode=0o660``.
"""

import asyncio
import errno
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sidecar.requests.middleware.senders import SenderBook
from sidecar.requests.middleware.wire import MAX_PACKET_BYTES
from sidecar.requests.record import RequestSink

TOO_MANY_SENDERS: Final = "too_many_senders"
MALFORMED: Final = "malformed"

_PACKETS_A_TURN: Final = 16  # then the event loop's other work has its turn; what is left keeps the socket readable
_LAST_TURNS: Final = 256  # at the end, for a sender that never pauses; a socket's buffer holds less
_ACCEPTS_A_TURN: Final = 16


class MiddlewareReceiver:
    """Listens on a Unix SEQPACKET socket at ``path`` and delivers to ``sink`` on the event loop.

    ``grace`` is how long a sender that hung up may take to come back, in seconds, before the requests that it had begun
    are given up as aborted.
    """

    def __init__(
        self,
        path: str | Path,
        sink: RequestSink,
        *,
        mode: int = 0o666,
        max_senders: int = 64,
        grace: float = 10.0,
        look_every: float = 5.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = Path(path)
        self._sink = sink
        self._mode = mode
        self._max_senders = max_senders
        self._grace = grace
        self._look_every = look_every
        self._look_timer: asyncio.TimerHandle | None = None
        self._book = SenderBook(sink, wall)
        self._buffer = bytearray(MAX_PACKET_BYTES + 1)
        self._listener: socket.socket | None = None
        self._inode = 0
        self._connections: dict[socket.socket, str | None] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def start(self) -> None:
        """Begin to listen; a socket that a predecessor left behind is replaced.

        Raises:
            FileExistsError: ``path`` is something else than a socket.
            OSError: EADDRINUSE where another process listens there, or what the file system says.
        """
        listener = _new_socket()
        try:
            self._inode = await asyncio.to_thread(_bind, listener, self._path, self._mode)
        except BaseException:
            listener.close()
            raise
        self._listen(listener)
        self._look_timer = asyncio.get_running_loop().call_later(self._look_every, self._look)

    def _listen(self, listener: socket.socket) -> None:
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def _unlisten(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._accept()
            self._listener.close()
            self._listener = None

    def _look(self) -> None:
        """Puts the socket file back where it is gone; what is connected stays so. The calls are quick: a tmpfs."""
        self._look_timer = asyncio.get_running_loop().call_later(self._look_every, self._look)
        if self._path.exists():
            return
        listener = _new_socket()
        try:
            self._inode = _bind(listener, self._path, self._mode)
        except OSError:
            listener.close()  # the directory is gone too, or full: looked at again later
            return
        self._unlisten()
        self._listen(listener)

    async def stop(self) -> None:
        """Take what has arrived, hang up, and give up the requests that are still open."""
        if self._look_timer is None:
            return
        self._look_timer.cancel()
        self._look_timer = None
        self._unlisten()
        for connection in list(self._connections):
            for _ in range(_LAST_TURNS):
                if connection not in self._connections or not self._read(connection):
                    break
                await asyncio.sleep(0)
            if connection in self._connections:
                self._hang_up(connection)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._book.give_up_all()
        await asyncio.to_thread(_remove, self._path, self._inode)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection, _address = self._listener.accept() if self._listener else (None, None)
            except OSError:
                return  # nobody waits, or they have gone again
            if connection is None:
                return
            if len(self._connections) >= self._max_senders:
                connection.close()
                self._sink.dropped(TOO_MANY_SENDERS, 1)
                continue
            connection.setblocking(False)
            self._connections[connection] = None
            asyncio.get_running_loop().add_reader(connection, self._read, connection)

    def _read(self, connection: socket.socket) -> bool:
        """Take some packets; whether there may be more."""
        for _ in range(_PACKETS_A_TURN):
            try:
                size = connection.recv_into(self._buffer)
            except BlockingIOError:
                return False
            except OSError:
                size = 0
            if size == 0 or not self._take(connection, size):
                self._hang_up(connection)
                return False
        return True

    def _take(self, connection: socket.socket, size: int) -> bool:
        """Whether the packet in the buffer was a sender's; one that is not ends the connection."""
        name = self._book.take(memoryview(self._buffer)[:size]) if size <= MAX_PACKET_BYTES else None
        known = self._connections[connection]
        if name is None or (known is not None and known != name):
            self._sink.dropped(MALFORMED, 1)
            return False
        if known is None:
            self._connections[connection] = name
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()
        return True

    def _hang_up(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(connection)
        connection.close()
        name = self._connections.pop(connection)
        if name is not None and name not in self._connections.values() and name not in self._timers:
            self._timers[name] = loop.call_later(self._grace, self._give_up, name)

    def _give_up(self, name: str) -> None:
        self._timers.pop(name, None)
        self._book.give_up(name)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)


def _bind(listener: socket.socket, path: Path, mode: int) -> int:
    """Bind and listen at ``path``; the socket file's inode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear(path)
    listener.bind(str(path))
    path.chmod(mode)
    listener.listen(64)
    return path.stat().st_ino


def _clear(path: Path) -> None:
    """Remove the socket that nobody listens on any more."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "not a socket, so it is left alone", str(path))
    with _new_socket() as probe:
        answer = probe.connect_ex(str(path))
    if answer in (0, errno.EAGAIN):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))
    path.unlink()


def _remove(path: Path, inode: int) -> None:
    """Remove our socket file, but no successor's."""
    try:
        if path.lstat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        pass
