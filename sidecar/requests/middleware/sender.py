"""Sends events to the sidecar without ever waiting for it.

Everything happens on the event loop that serves the requests: events are collected for 50 ms and sent in one
non-blocking system call. While the sidecar is slow or down they queue up, within a limit.
"""

import asyncio
import socket
from collections import deque
from itertools import islice
from typing import Final

import msgspec

from sidecar.requests.middleware.wire import DROPPED_QUEUE_FULL, MAX_PACKET_EVENTS, VERSION, Packet
from sidecar.requests.record import RequestRecord, RequestStart

_PACKETS_A_FLUSH: Final = 16  # bounds how long a backlog occupies the event loop
_SEND_BUFFER_BYTES: Final = 4_194_304  # requested; the kernel grants what net.core.wmem_max allows
_RETRY_SECONDS: Final = 1.0
_DONT_WAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class EventSender:
    """One process's sender; it runs entirely on ``loop``. No method raises or blocks.

    ``max_events`` bounds the queue. A request that begins also reserves room for its end, so that a connected sidecar
    gets the end of every request that it knows. While none is connected, the oldest events are dropped.
    """

    def __init__(
        self, path: str, loop: asyncio.AbstractEventLoop, *, interval: float = 0.05, max_events: int = 16_384
    ) -> None:
        self._path = path
        self._loop = loop
        self._interval = interval
        self._max_events = max_events
        self._encode = msgspec.msgpack.Encoder().encode
        self._queue: deque[RequestStart | RequestRecord] = deque()
        self._open = 0  # requests in flight; each has room for its end
        self._dropped: dict[str, int] = {}
        self._socket: socket.socket | None = None
        self._retry_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def started(self, request: RequestStart) -> bool:
        """Queue a request's start. False if there is no room: its end must not be sent then."""
        while len(self._queue) + self._open + 2 > self._max_events:
            self.dropped(DROPPED_QUEUE_FULL, 1)
            if self._socket is not None or not self._queue:
                return False
            self._queue.popleft()
        self._open += 1
        self._queue.append(request)
        self._schedule()
        return True

    def finished(self, record: RequestRecord) -> None:
        """Queue the end of a request that ``started`` accepted."""
        self._open -= 1
        self._queue.append(record)
        self._schedule()

    def dropped(self, reason: str, count: int) -> None:
        """Count what was lost; the next packet reports it."""
        self._dropped[reason] = self._dropped.get(reason, 0) + count
        self._schedule()

    def close(self) -> None:
        """Send what the sidecar accepts now, and disconnect."""
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        if self._timer is not None:
            self._timer.cancel()
        self._hang_up()

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
        """Whether a packet was sent; only then do its events leave the queue."""
        connection = self._socket or self._connect()
        if connection is None:
            return False
        events = list(islice(self._queue, MAX_PACKET_EVENTS))
        started = [event for event in events if isinstance(event, RequestStart)]
        finished = [event for event in events if isinstance(event, RequestRecord)]
        try:
            connection.send(self._encode(Packet(VERSION, self._dropped, started, finished)), _DONT_WAIT)
        except BlockingIOError:  # the sidecar is behind
            return False
        except OSError:
            self._fail()
            return False
        for _ in events:
            self._queue.popleft()
        self._dropped = {}
        return True

    def _connect(self) -> socket.socket | None:
        """Connect to the sidecar; on a Unix socket that succeeds or fails immediately."""
        if self._loop.time() < self._retry_at:
            return None
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            self._socket.connect(self._path)
        except (OSError, ValueError):  # a path may have a null byte
            self._fail()
        return self._socket

    def _fail(self) -> None:
        """The sidecar is not listening: try again later."""
        self._hang_up()
        self._retry_at = self._loop.time() + _RETRY_SECONDS

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
