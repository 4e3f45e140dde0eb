"""The sidecar's end of the middleware's socket: receives events from any number of API-server processes.

The socket is in a volume that two containers share, often with different users, so by default anyone may connect: the
volume's mounts are the boundary, not the file's mode. That is safe: other processes can only write, and what they write
is read a few packets at a time, in turns, and checked against types, ranges and limits before it counts.
With ``uid``, only processes of that user are accepted.
"""

import asyncio
import math
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from sidecar.accept_loop import AcceptLoop
from sidecar.log import Log
from sidecar.requests.middleware.socket_file import bind, new_socket, peer_uid, remove
from sidecar.requests.middleware.wire import DROPPED_INTERNAL, DROPPED_QUEUE_FULL, MAX_PACKET_BYTES, Packet
from sidecar.requests.observe.endpoint import ENDPOINTS
from sidecar.requests.observe.exchange_observer import Fault
from sidecar.requests.record import RequestRecord, RequestStart, aborted
from sidecar.requests.source import RequestSink

SENDER_GONE: Final = "sender_gone"  # a request was in flight when its process disconnected
CONTRADICTORY: Final = "contradictory"  # an event that cannot be true
TOO_MANY_OPEN: Final = "too_many_open"
TOO_MANY_SENDERS: Final = "too_many_senders"  # the sender silent longest was disconnected for another
SILENT_SENDER: Final = "silent_sender"  # it connected and sent nothing
NO_DESCRIPTORS: Final = "no_descriptors"  # accepting paused; senders wait
WRONG_USER: Final = "wrong_user"
MALFORMED: Final = "malformed"
_UNNAMED: Final = "other"

_SENDERS_REASONS: Final = frozenset({DROPPED_QUEUE_FULL, DROPPED_INTERNAL, *map(str, Fault)})
DROP_REASONS: Final = _SENDERS_REASONS | {
    SENDER_GONE, CONTRADICTORY, TOO_MANY_OPEN, TOO_MANY_SENDERS, NO_DESCRIPTORS, SILENT_SENDER, WRONG_USER, MALFORMED,
    _UNNAMED,
}  # fmt: skip
"""Every reason that an ``EventReceiver`` gives its sink."""

_MOST_OPEN: Final = 16_384  # requests in flight, over all senders
_MOST_DROPPED: Final = 100_000  # lost events that one packet can report for one reason
_PACKETS_A_TURN: Final = 8  # over all senders; then the event loop's other work has its turn
_ENDS_A_TURN: Final = 160  # as many events as those packets hold
_LAST_TURNS: Final = 2048  # when stopping, for senders that never pause; a socket's buffer holds less
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
_PACKET: Final = msgspec.msgpack.Decoder(Packet)


@dataclass(slots=True)
class _Sender:
    """One connection: a vLLM process, with the requests it reports."""

    number: int
    heard: int = 0  # the number of its last packet among all packets; 0: none yet
    open: dict[str, RequestStart] = field(default_factory=dict)  # by the process's own id


class EventReceiver:
    """Listens on a Unix SEQPACKET socket at ``path`` and delivers to ``sink`` on the event loop.

    A request in flight when its connection breaks ends as aborted. A sender past ``max_senders`` replaces the one
    silent longest, which may connect again; one that sends nothing for ``first_packet_seconds`` is
    disconnected. Every ``look_every`` seconds the socket's file is restored if it is gone.
    """

    def __init__(
        self,
        path: str | Path,
        sink: RequestSink,
        *,
        uid: int | None = None,
        max_senders: int = 64,
        first_packet_seconds: float = 5.0,
        look_every: float = 5.0,
        wall: Callable[[], float] = time.time,
        log: Log | None = None,
    ) -> None:
        self._path = Path(path)
        self._sink = sink
        self._uid = uid
        self._max_senders = max_senders
        self._first_packet_seconds = first_packet_seconds
        self._look_every = look_every
        self._wall = wall
        self._log = log
        self._numbers = count(1)
        self._packets = count(1)
        self._buffer = bytearray(MAX_PACKET_BYTES + 1)
        self._accepting: AcceptLoop | None = None
        self._inode = 0
        self._look_timer: asyncio.TimerHandle | None = None
        self._senders: dict[socket.socket, _Sender] = {}
        self._readable: deque[socket.socket] = deque()  # in the order of their turns
        self._orphans: deque[RequestStart] = deque()  # in flight at senders that are gone
        self._open = 0  # requests in flight, orphans included
        self._has_turn = False

    async def start(self) -> None:
        """Starts listening; replaces a socket that a predecessor left behind. Raises as ``socket_file.bind`` does."""
        listener = new_socket()
        try:
            self._inode = await asyncio.to_thread(bind, listener, self._path)
        except BaseException:
            listener.close()
            raise
        self._listen(listener)
        self._look_timer = asyncio.get_running_loop().call_later(self._look_every, self._look)

    async def stop(self) -> None:
        """Reads what has arrived, disconnects, and ends the requests still in flight. Idempotent."""
        if self._look_timer is None:
            return
        self._look_timer.cancel()
        self._look_timer = None
        self._unlisten()
        for connection in self._senders:
            self._enqueue(connection)
        for _ in range(_LAST_TURNS):
            if not self._readable:
                break
            self._read_some()
            await asyncio.sleep(0)
        for connection in list(self._senders):
            self._hang_up(connection)
        while self._orphans:
            self._end_some()
            await asyncio.sleep(0)
        await asyncio.to_thread(remove, self._path, self._inode)

    def _listen(self, listener: socket.socket) -> None:
        self._accepting = AcceptLoop(listener, self._accept, lambda: self._sink.dropped(NO_DESCRIPTORS, 1), self._log)

    def _unlisten(self) -> None:
        if self._accepting is not None:
            self._accepting.accept_pending()
            self._accepting.close()
            self._accepting = None

    def _look(self) -> None:
        """Restores the socket's file if it is gone; connections stay. The calls are quick on a tmpfs."""
        self._look_timer = asyncio.get_running_loop().call_later(self._look_every, self._look)
        if self._path.exists():
            return
        listener = new_socket()
        try:
            self._inode = bind(listener, self._path)
        except OSError:
            listener.close()  # the directory is gone too, or full: try again later
            return
        self._unlisten()
        self._listen(listener)

    def _accept(self, connection: socket.socket) -> None:
        if self._uid not in (None, peer_uid(connection)):
            connection.close()
            self._sink.dropped(WRONG_USER, 1)
            return
        if len(self._senders) >= self._max_senders:
            self._hang_up(min(self._senders, key=self._worth))
            self._sink.dropped(TOO_MANY_SENDERS, 1)
        self._senders[connection] = _Sender(next(self._numbers))
        loop = asyncio.get_running_loop()
        loop.add_reader(connection, self._enqueue, connection)
        loop.call_later(self._first_packet_seconds, self._expect_packet, connection)

    def _worth(self, connection: socket.socket) -> tuple[bool, bool, int]:
        """Sort key of senders: how much would be lost by disconnecting them."""
        sender = self._senders[connection]
        return connection in self._readable, bool(sender.open), sender.heard

    def _expect_packet(self, connection: socket.socket) -> None:
        sender = self._senders.get(connection)
        if sender is not None and not sender.heard and connection not in self._readable:
            self._sink.dropped(SILENT_SENDER, 1)
            self._hang_up(connection)

    def _enqueue(self, connection: socket.socket) -> None:
        """There is something to read, or was a moment ago."""
        if connection not in self._readable:
            self._readable.append(connection)
            self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        self._read_some()
        self._end_some()
        if self._readable or self._orphans:
            self._ask_for_turn()

    def _read_some(self) -> None:
        """Reads some packets, one per sender in turn."""
        for _ in range(_PACKETS_A_TURN):
            if self._readable and self._read(connection := self._readable.popleft()):
                self._readable.append(connection)

    def _read(self, connection: socket.socket) -> bool:
        """Reads a packet; returns whether there may be more."""
        try:
            size = connection.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError:
            size = 0
        if size and self._take(self._senders[connection], size):
            return True
        self._hang_up(connection)
        return False

    def _take(self, sender: _Sender, size: int) -> bool:
        """Delivers the events of the packet in the buffer; False if it is invalid, which ends the connection."""
        sender.heard = next(self._packets)
        try:
            packet = _PACKET.decode(memoryview(self._buffer)[:size])
        except _UNREADABLE:
            self._sink.dropped(MALFORMED, 1)
            return False
        for reason, dropped in packet.dropped.items():
            self._sink.dropped(reason if reason in _SENDERS_REASONS else _UNNAMED, min(dropped, _MOST_DROPPED))
        for request in packet.started:
            self._started(sender, request)
        for record in packet.finished:
            self._finished(sender, record)
        return True

    def _started(self, sender: _Sender, request: RequestStart) -> None:
        if request.id in sender.open:
            self._sink.dropped(CONTRADICTORY, 1)
        elif self._open >= _MOST_OPEN:
            self._sink.dropped(TOO_MANY_OPEN, 1)
        else:
            sender.open[request.id] = known = RequestStart(f"{sender.number}-{request.id}", request.start)
            self._open += 1
            self._sink.started(known)

    def _finished(self, sender: _Sender, record: RequestRecord) -> None:
        """A request that began before this sidecar started has an end without a start."""
        started = sender.open.pop(record.id, None)
        self._open -= started is not None
        if _is_possible(record):
            self._sink.finished(replace(record, id=f"{sender.number}-{record.id}"))
            return
        self._sink.dropped(CONTRADICTORY, 1)
        if started is not None:
            self._sink.finished(aborted(started, self._wall()))

    def _hang_up(self, connection: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(connection)
        connection.close()
        if connection in self._readable:
            self._readable.remove(connection)
        sender = self._senders.pop(connection)
        if sender.open:
            self._sink.dropped(SENDER_GONE, len(sender.open))
            self._orphans.extend(sender.open.values())
            self._ask_for_turn()

    def _end_some(self) -> None:
        """Ends some requests of senders that are gone."""
        for _ in range(min(_ENDS_A_TURN, len(self._orphans))):
            self._open -= 1
            self._sink.finished(aborted(self._orphans.popleft(), self._wall()))


def _is_possible(record: RequestRecord) -> bool:
    """Whether the middleware can have sent this record, whose fields are within their ranges."""
    temperature, acceptance = record.temperature, record.acceptance
    return (
        (record.path in ENDPOINTS or record.path == "")
        and (temperature is None or math.isnan(temperature) or 0 <= temperature < math.inf)
        and record.start <= (record.start if record.first_token is None else record.first_token) <= record.end
        and (acceptance is None or acceptance.adds_up)
        and not record.event_offsets
    )
