"""Accepting connections without spinning when the process has no descriptor left."""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

import structlog

from sidecar.log import Log, StateLog

_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_ACCEPTS_A_TURN: Final = 16


class AcceptLoop:
    """Calls ``accepted`` for each connection on ``listener``, from now until ``close``, on the running event loop.

    In a ``pause``, which ``accepted`` may begin, connections wait in the backlog. When the process or the kernel has no
    descriptor or memory left, it pauses by itself for ``pause_seconds``; ``exhausted`` is called each time, and the log
    has one line when accepting stops and one when it works again. asyncio's own loop logs each such pause; uvloop
    accepts and closes connections at full speed, and may close the listener.
    """

    def __init__(
        self,
        listener: socket.socket,
        accepted: Callable[[socket.socket], None],
        exhausted: Callable[[], None],
        log: Log | None = None,
        pause_seconds: float = 1.0,
    ) -> None:
        self._listener = listener
        self._accepted = accepted
        self._exhausted = exhausted
        self._faults = StateLog(log or structlog.get_logger("sidecar"))
        self._pause_seconds = pause_seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        listener.setblocking(False)  # noqa: FBT003 - the socket's signature
        self._loop.add_reader(listener, self.accept_pending)

    def close(self) -> None:
        """Stops accepting and closes the listener. Idempotent."""
        self._end_pause()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def pause(self, seconds: float) -> None:
        """Accepts none for ``seconds``, or until ``accept_pending`` is called; replaces a pause in progress."""
        self._end_pause()
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(seconds, self.accept_pending)

    def accept_pending(self) -> None:
        """Accepts some of the waiting connections; ends a pause."""
        if self._timer is not None:
            self._end_pause()
            self._loop.add_reader(self._listener, self.accept_pending)
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                self._faults.clear("accept", "accepting connections again")
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._faults.fault("accept", "cannot accept connections", reason=str(error.strerror))
                    self._exhausted()
                    self.pause(self._pause_seconds)
                    return
                continue  # this one failed before it was accepted
            connection.setblocking(False)  # noqa: FBT003 - see above
            self._accepted(connection)
            if self._timer is not None:
                return

    def _end_pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
