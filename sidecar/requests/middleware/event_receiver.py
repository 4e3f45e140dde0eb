"""The sidecar's end of the middleware's socket: takes events from any number of API-server processes.

The socket is in a volume that two containers share, often with different users, so by default anyone may connect: the
volume's mounts are the boundary, not the file's mode. That is safe enough, for a stranger can only write, and what it
writes is checked against types, ranges and limits before it counts. If both containers share a group (``fsGroup``), set
``mode=0o660``.
"""

import asyncio
import errno
import math
import os
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from sidecar.requests.middleware.wire import DROPPED_INTERNAL, DROPPED_QUEUE_FULL, MAX_PACKET_BYTES, Packet
from sidecar.requests.observe.endpoint import ENDPOINTS
from sidecar.requests.observe.exchange_observer import Fault
from sidecar.requests.record import RequestRecord, RequestStart, aborted
from sidecar.requests.source import RequestSink

SENDER_GONE: Final = "sender_gone"  # a request had begun when its process went away
CONTRADICTORY: Final = "contradictory"  # an event that can't be true
TOO_MANY_OPEN: Final = "too_many_open"
TOO_MANY_SENDERS: Final = "too_many_senders"
MALFORMED: Final = "malformed"
_UNNAMED: Final = "other"

_SENDERS_REASONS: Final = frozenset({DROPPED_QUEUE_FULL, DROPPED_INTERNAL, *map(str, Fault)})
DROP_REASONS: Final = _SENDERS_REASONS | {
    SENDER_GONE, CONTRADICTORY, TOO_MANY_OPEN, TOO_MANY_SENDERS, MALFORMED, _UNNAMED,
}  # fmt: skip
"""Every reason that an ``EventReceiver`` gives its sink."""

_MOST_OPEN: Final = 65_536  # requests that one process has begun
_PACKETS_A_TURN: Final = 16  # then the event loop's other work has its turn; what is left keeps the socket readable
_LAST_TURNS: Final = 256  # at the end, for a sender that never pauses; a socket's buffer holds less
_ACCEPTS_A_TURN: Final = 16
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
_PACKET: Final = msgspec.msgpack.Decoder(Packet)


@dataclass(frozen=True, slots=True)
class _Sender:
    """One connection: a vLLM process, whose requests are those that it tells of here."""

    number: int
    open: dict[str, RequestStart] = field(default_factory=dict)  # by the process's own id


class EventReceiver:
    """Listens on a Unix SEQPACKET socket at ``path`` and delivers to ``sink`` on the event loop.

    A request that has begun when its connection breaks ends as aborted. Every ``look_every`` seconds the socket's file
    is put back if it is gone.
    """

    def __init__(
        self,
        path: str | Path,
        sink: RequestSink,
        *,
        mode: int = 0o666,
        max_senders: int = 64,
        look_every: float = 5.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = Path(path)
        self._sink = sink
        self._mode = mode
        self._max_senders = max_senders
        self._look_every = look_every
        self._wall = wall
        self._numbers = count(1)
        self._buffer = bytearray(MAX_PACKET_BYTES + 1)
        self._listener: socket.socket | None = None
        self._inode = 0
        self._look_timer: asyncio.TimerHandle | None = None
        self._senders: dict[socket.socket, _Sender] = {}

    async def start(self) -> None:
        """Begin to listen; a socket that a predecessor left behind is replaced.

        Raises:
            FileExistsError: ``path`` is something else than a socket.
            OSError: EADDRINUSE if another process listens there, or what the file system says.
        """
        listener = _new_socket()
        try:
            self._inode = await asyncio.to_thread(_bind, listener, self._path, self._mode)
        except BaseException:
            listener.close()
            raise
        self._listen(listener)
        self._look_timer = asyncio.get_running_loop().call_later(self._look_every, self._look)

    async def stop(self) -> None:
        """Take what has arrived, hang up, and end the requests that are still open. Idempotent."""
        if self._look_timer is None:
            return
        self._look_timer.cancel()
        self._look_timer = None
        self._unlisten()
        for connection in list(self._senders):
            for _ in range(_LAST_TURNS):
                if connection not in self._senders or not self._read(connection):
                    break
                await asyncio.sleep(0)
            if connection in self._senders:
                self._hang_up(connection)
        await asyncio.to_thread(_remove, self._path, self._inode)

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
        """Put the socket's file back if it is gone; connections stay. The calls are quick: a tmpfs."""
        self._look_timer = asyncio.get_running_loop().call_later(self._look_every, self._look)
        if self._path.exists():
            return
        listener = _new_socket()
        try:
            self._inode = _bind(listener, self._path, self._mode)
        except OSError:
            listener.close()  # the directory is gone too, or full: tried again later
            return
        self._unlisten()
        self._listen(listener)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection, _address = self._listener.accept() if self._listener else (None, None)
            except OSError:
                return  # nobody waits, or they have gone again
            if connection is None:
                return
            if len(self._senders) >= self._max_senders:
                connection.close()
                self._sink.dropped(TOO_MANY_SENDERS, 1)
                continue
            connection.setblocking(False)
            self._senders[connection] = _Sender(next(self._numbers))
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
            if size == 0 or not self._take(self._senders[connection], size):
                self._hang_up(connection)
                return False
        return True

    def _take(self, sender: _Sender, size: int) -> bool:
        """Deliver the events of the packet in the buffer; False if it is none, which ends the connection."""
        try:
            packet = _PACKET.decode(memoryview(self._buffer)[:size])
        except _UNREADABLE:
            self._sink.dropped(MALFORMED, 1)
            return False
        for reason, dropped in packet.dropped.items():
            self._sink.dropped(reason if reason in _SENDERS_REASONS else _UNNAMED, dropped)
        for request in packet.started:
            self._started(sender, request)
        for record in packet.finished:
            self._finished(sender, record)
        return True

    def _started(self, sender: _Sender, request: RequestStart) -> None:
        if request.id in sender.open:
            self._sink.dropped(CONTRADICTORY, 1)
        elif len(sender.open) >= _MOST_OPEN:
            self._sink.dropped(TOO_MANY_OPEN, 1)
        else:
            sender.open[request.id] = known = RequestStart(f"{sender.number}-{request.id}", request.start)
            self._sink.started(known)

    def _finished(self, sender: _Sender, record: RequestRecord) -> None:
        """A request that began before this sidecar did has an end without a start."""
        started = sender.open.pop(record.id, None)
        if _is_possible(record):
            self._sink.finished(replace(record, id=f"{sender.number}-{record.id}"))
            return
        self._sink.dropped(CONTRADICTORY, 1)
        if started is not None:
            self._sink.finished(aborted(started, self._wall()))

    def _hang_up(self, connection: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(connection)
        connection.close()
        sender = self._senders.pop(connection)
        if sender.open:
            self._sink.dropped(SENDER_GONE, len(sender.open))
        for request in sender.open.values():
            self._sink.finished(aborted(request, self._wall()))


def _is_possible(record: RequestRecord) -> bool:
    """Whether a record whose fields are in their ranges is one that the middleware makes."""
    temperature, acceptance = record.temperature, record.acceptance
    return (
        (record.path in ENDPOINTS or record.path == "")
        and (temperature is None or math.isnan(temperature) or 0 <= temperature < math.inf)
        and record.start <= (record.start if record.first_token is None else record.first_token) <= record.end
        and (acceptance is None or acceptance.adds_up)
        and not record.event_offsets
    )


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
    """Remove a socket that nobody listens on any more."""
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
