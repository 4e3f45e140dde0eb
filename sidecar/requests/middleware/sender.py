"""Sends events to the sidecar without ever waiting for it.

Everything happens on the event loop that serves the requests: events gather for some 50 ms and leave in one
non-blocking system call for many. Where the sidecar is slow or away they queue up, within limits, and past those the
oldest are dropped and counted.
"""

import asyncio
import os
import socket
from collections import deque
from typing import Final

import msgspec

from sidecar.requests.middleware.wire import (
    DROPPED_QUEUE_FULL,
    MAX_PACKET_BYTES,
    MAX_PACKET_EVENTS,
    VERSION,
    Finished,
    Started,
)

_ENVELOPE_BYTES: Final = 4_096  # the packet's own fields, the reasons of drops included
_LARGEST_EVENT: Final = MAX_PACKET_BYTES - _ENVELOPE_BYTES  # four times what a full histogram of large numbers takes
_PACKETS_A_FLUSH: Final = 16  # a bound on the time a backlog may take of the event loop at once
_SEND_BUFFER_BYTES: Final = 4_194_304  # asked for; the kernel grants what net.core.wmem_max allows
_SHORTEST_BACKOFF: Final = 0.1
_LONGEST_BACKOFF: Final = 5.0
_DONT_WAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class EventSender:
    """One process's sender; all of it runs on ``loop``. No method raises or blocks."""

    def __init__(
        self,
        path: str,
        loop: asyncio.AbstractEventLoop,
        *,
        interval: float = 0.05,
        max_events: int = 16_384,
        max_bytes: int = 4_194_304,
    ) -> None:
        self.name = f"{os.getpid():x}-{os.urandom(6).hex()}"
        self._path = path
        self._loop = loop
        self._interval = interval
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._encode = msgspec.msgpack.Encoder().encode
        self._queue: deque[tuple[int, bytes]] = deque()  # a request's number with its end, -1 with its start
        self._bytes = 0
        self._sent = 0
        self._open: dict[int, None] = {}  # requests begun whose end was neither sent nor dropped, oldest first
        self._next = 0
        self._dropped: dict[str, int] = {}
        self._socket: socket.socket | None = None
        self._retry_at = 0.0
        self._backoff = _SHORTEST_BACKOFF
        self._timer: asyncio.TimerHandle | None = None

    def next_number(self) -> int:
        """The number of a request that begins now."""
        number = self._next
        self._next += 1
        return number

    def started(self, event: Started) -> None:
        """Queue a request's start."""
        self._open[event.number] = None
        self._put(-1, self._encode(event))

    def finished(self, event: Finished) -> None:
        """Queue a request's end."""
        self._put(event.number, self._encode(event))

    def forgotten(self, number: int, reason: str) -> None:
        """A request's end can't be told; its start may have been."""
        self._open.pop(number, None)
        self.dropped(reason, 1)

    def dropped(self, reason: str, count: int) -> None:
        """Count what was lost; it is told with the next packet."""
        self._dropped[reason] = self._dropped.get(reason, 0) + count
        self._schedule()

    def flush(self) -> None:
        """Send what is queued now, as far as the sidecar takes it."""
        if self._timer is not None:
            self._timer.cancel()
        self._flush()

    def close(self) -> None:
        """Send what can be sent and hang up."""
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hang_up()

    def _put(self, ends: int, event: bytes) -> None:
        self._queue.append((ends, event))
        self._bytes += len(event)
        while len(self._queue) > self._max_events or self._bytes > self._max_bytes:
            self._drop_oldest()
        self._schedule()

    def _drop_oldest(self) -> None:
        ends, event = self._queue.popleft()
        self._bytes -= len(event)
        self._open.pop(ends, None)
        self.dropped(DROPPED_QUEUE_FULL, 1)

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval, self._flush)

    def _flush(self) -> None:
        self._timer = None
        for _ in range(_PACKETS_A_FLUSH):
            if not (self._queue or self._dropped):
                return
            if not self._send_packet():
                break
        self._timer = self._loop.call_later(max(self._interval, self._retry_at - self._loop.time()), self._flush)

    def _send_packet(self) -> bool:
        """Whether a packet left; only then its events are let go."""
        connection = self._socket or self._connect()
        if connection is None:
            return False
        taken = self._take_events()
        try:
            connection.send(self._packet([event for _, event in taken]), _DONT_WAIT)
        except OSError as fault:
            self._queue.extendleft(reversed(taken))
            if not isinstance(fault, BlockingIOError):  # that one only says that the sidecar is behind
                self._hang_up()
                self._back_off()
            return False
        for ends, event in taken:
            self._bytes -= len(event)
            if ends >= 0:
                self._open.pop(ends, None)
        self._sent += len(taken)
        self._dropped = {}
        self._backoff = _SHORTEST_BACKOFF
        return True

    def _take_events(self) -> list[tuple[int, bytes]]:
        taken: list[tuple[int, bytes]] = []
        room = _LARGEST_EVENT
        while self._queue and len(taken) < MAX_PACKET_EVENTS:
            room -= len(self._queue[0][1])
            if room < 0:
                break
            taken.append(self._queue.popleft())
        return taken

    def _packet(self, events: list[bytes]) -> bytes:
        """A ``Packet`` in msgpack: an array of six whose last is one of events, which are encoded already."""
        fields = self._encode((VERSION, self.name, self._sent, self._oldest_open(), self._dropped))
        return b"".join((b"\x96", fields[1:], b"\xdc", len(events).to_bytes(2, "big"), *events))

    def _oldest_open(self) -> int:
        return next(iter(self._open), self._next)

    def _connect(self) -> socket.socket | None:
        """Connect to the sidecar; on a Unix socket that succeeds or fails at once."""
        if self._loop.time() < self._retry_at:
            return None
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            self._socket.connect(self._path)
        except OSError:
            self._hang_up()
            self._back_off()
            return None
        return self._socket

    def _back_off(self) -> None:
        self._retry_at = self._loop.time() + self._backoff
        self._backoff = min(self._backoff * 2, _LONGEST_BACKOFF)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
