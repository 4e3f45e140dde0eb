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

    When the process or the kernel has no descriptor or memory left, it pauses for ``pause_seconds``, and connections
    wait in the backlog. asyncio's own loop does so too, but logs each pause; uvloop accepts and closes them at full
    speed, and may close the listener. ``exhausted`` is called for each pause; the log has one line when accepting stops
    and one when it works again.
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
        if self._timer is not None:
            self._timer.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def accept_pending(self) -> None:
        """Accepts some of the waiting connections."""
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                self._faults.clear("accept", "accepting connections again")
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(error)
                    return
                continue  # this one failed before it was accepted
            connection.setblocking(False)  # noqa: FBT003 - see above
            self._accepted(connection)

    def _pause(self, error: OSError) -> None:
        self._faults.fault("accept", "cannot accept connections", reason=str(error.strerror))
        self._exhausted()
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(self._pause_seconds, self._resume)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self.accept_pending)
        self.accept_pending()  # also if none waits any longer, which ends the fault
