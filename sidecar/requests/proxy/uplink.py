"""One exchange's way to the upstream: a pooled connection or a new one, tried once more where that is safe."""

import asyncio
from typing import Protocol

from sidecar.requests.proxy.pool import ConnectFailed, Pool
from sidecar.requests.proxy.upstream import ResponseSink, UpstreamConnection


class UplinkUser(ResponseSink, Protocol):
    """The exchange, as its uplink sees it."""

    def uplink_attached(self) -> None:
        """There is a connection now."""

    def uplink_blocked_changed(self) -> None:
        """``Uplink.blocked`` has changed."""

    def connect_failed(self, kind: str) -> None:
        """There is no connection to be had; ``kind`` is a key of ``RelayStats.upstream_errors``."""


class Uplink:
    """Sends the request; the response goes from the connection straight to the exchange."""

    __slots__ = (
        "_complete", "_connection", "_dial", "_held_back", "_outgoing", "_pool", "_repeatable", "_user", "blocked",
    )  # fmt: skip

    def __init__(self, user: UplinkUser, pool: Pool) -> None:
        self._user: UplinkUser | None = user  # None once released, so that no cycle is left to the collector
        self._pool = pool
        self._connection: UpstreamConnection | None = None
        self._dial: asyncio.Task[None] | None = None
        self._outgoing = b""  # waits for a connection, or for the certainty that it need not be sent again
        self._repeatable = False
        self._complete = False
        self._held_back = False  # whether the response is
        self.blocked = False  # whether no more may be sent for now

    def open(self, data: bytes, *, complete: bool, repeatable: bool) -> None:
        """Find a connection and send ``data``.

        ``complete``: the whole request is in it. ``repeatable``: it does no harm if the upstream gets it twice.
        """
        self._outgoing = data
        self._complete = complete
        self._repeatable = repeatable
        connection = self._pool.take()
        if connection is None:
            self._start_dial()
        else:
            self._attach(connection)

    def send(self, data: bytes) -> None:
        """Send more."""
        if self._connection is None:
            self._outgoing += data
        else:
            self._connection.transport.write(data)

    def retry(self) -> bool:
        """After the connection's end before any byte of a response: whether the request is sent once more.

        As nginx and Go have it, only a pooled connection that turned out closed is a reason, and only a request that
        is safe to repeat is: of a POST nobody can tell whether the engine has begun to generate.
        """
        connection = self._connection
        if connection is None or not (connection.reused and self._repeatable):
            return False
        self._connection = None
        self._repeatable = False
        self._start_dial()
        return True

    def flow(self, *, wanted: bool) -> None:
        """Let the response come, or hold it back."""
        connection = self._connection
        if connection is not None and not connection.transport.is_closing():
            self._held_back = not wanted
            if wanted:
                connection.transport.resume_reading()
            else:
                connection.transport.pause_reading()

    def set_blocked(self, *, blocked: bool) -> None:
        """The connection takes no more bytes for now, or does again."""
        if self.blocked != blocked and self._user is not None:
            self.blocked = blocked
            self._user.uplink_blocked_changed()

    def release(self, *, reuse: bool) -> None:
        """Let go of the connection: back to the pool or closed at once; a dial under way is given up."""
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        connection, self._connection, self._user = self._connection, None, None
        if connection is None:
            return
        if reuse:
            if self._held_back:
                connection.transport.resume_reading()
            self._pool.give_back(connection)
        else:
            connection.abort()

    def _attach(self, connection: UpstreamConnection) -> None:
        user = self._user
        if user is None:  # released a moment before
            connection.abort()
            return
        self._connection = connection
        connection.exchange = user
        connection.transport.write(self._outgoing)
        if not (connection.reused and self._repeatable):
            self._outgoing = b""
        user.uplink_attached()
        if self.blocked == connection.writable:
            self.set_blocked(blocked=not self.blocked)

    def _start_dial(self) -> None:
        # A client with more to send has to wait; one that has sent all is read on, to notice when it goes.
        self.set_blocked(blocked=not self._complete)
        self._dial = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            connection = await self._pool.connect()
        except ConnectFailed as failure:
            self._dial = None
            if self._user is not None:
                self._user.connect_failed(failure.kind)
        else:
            self._dial = None
            self._attach(connection)
