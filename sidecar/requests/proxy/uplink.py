"""An exchange's way to the upstream: a pooled or a new connection, with one retry if that is safe."""

import asyncio

from sidecar.errors import ConnectFailed
from sidecar.requests.proxy.upstream import Pool, UpstreamConnection, UpstreamUser


class Uplink:
    """Sends the request; the response goes from the connection straight to the exchange."""

    __slots__ = ("_connection", "_dial", "_outgoing", "_paused", "_pool", "_repeatable", "_user", "blocked",
                 "opened")  # fmt: skip

    def __init__(self, user: UpstreamUser, pool: Pool) -> None:
        self._user: UpstreamUser | None = user  # None once released, which also breaks the reference cycle
        self._pool = pool
        self._connection: UpstreamConnection | None = None
        self._dial: asyncio.Task[None] | None = None
        self._outgoing = b""  # kept until there is a connection, or until no retry is possible
        self._repeatable = False
        self._paused = False  # reading the response is paused
        self.opened = False
        self.blocked = False  # no more may be sent for now

    def open(self, data: bytes, *, complete: bool, repeatable: bool) -> None:
        """Find a connection and send ``data``.

        ``complete``: it is the whole request. ``repeatable``: the upstream may safely get it twice.
        """
        self.opened = True
        self._outgoing = data
        self._repeatable = repeatable
        connection = self._pool.take()
        if connection is None:
            # A client with more to send has to wait. One that has sent everything is still read, to notice its close.
            self.blocked = not complete
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
        """Whether the request is sent again after the connection ended before the first byte of a response.

        As in nginx and Go, this happens only if a pooled connection turned out to be closed, and only for a request
        that is safe to repeat: for a POST we cannot know whether the engine has begun to generate.
        """
        connection = self._connection
        if connection is None or not (connection.reused and self._repeatable):
            return False
        self._connection = None
        self._repeatable = False
        self._start_dial()
        return True

    def flow(self, *, wanted: bool) -> None:
        """Resume or pause reading the response."""
        connection = self._connection
        if connection is not None and not connection.transport.is_closing():
            self._paused = not wanted
            if wanted:
                connection.transport.resume_reading()
            else:
                connection.transport.pause_reading()

    def release(self, *, reuse: bool) -> None:
        """Return the connection to the pool or close it immediately; cancel a dial."""
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        connection, self._connection, self._user = self._connection, None, None
        if connection is None:
            return
        if reuse:
            if self._paused:
                connection.transport.resume_reading()
            self._pool.give_back(connection)
        else:
            connection.abort()

    def _attach(self, connection: UpstreamConnection) -> None:
        user = self._user
        if user is None:  # just released
            connection.abort()
            return
        self._connection = connection
        connection.user = user
        connection.transport.write(self._outgoing)
        if not (connection.reused and self._repeatable):
            self._outgoing = b""
        self.blocked = not connection.writable

    def _start_dial(self) -> None:
        self._dial = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            connection = await self._pool.connect()
        except ConnectFailed as failure:
            self._dial = None
            if self._user is not None:
                self._user.fail(failure.kind)
        else:
            self._dial = None
            self._attach(connection)
            if self._user is not None:
                self._user.uplink_connected()
