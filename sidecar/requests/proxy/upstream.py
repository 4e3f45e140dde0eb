"""One connection to the upstream."""

import asyncio
import select
from typing import Protocol, cast

from sidecar.requests.proxy.sockets import notice_silence

_SILENCE_SECONDS = 60.0  # after which the upstream's kernel is asked whether it is still there


class ResponseSink(Protocol):
    """The exchange that a connection works for."""

    def response_data(self, data: bytes) -> None:
        """Bytes of the response."""

    def upstream_ended(self, *, orderly: bool) -> None:
        """The connection has ended; ``orderly`` is the upstream's own end of stream, not a reset."""

    def upstream_writable(self, *, writable: bool) -> None:
        """The upstream takes bytes again, or holds too many of them already."""


class ConnectionOwner(Protocol):
    """The pool that a connection belongs to."""

    def opened(self, connection: "UpstreamConnection") -> None:
        """The connection stands."""

    def lost(self, connection: "UpstreamConnection") -> None:
        """The connection is gone; called once."""


class UpstreamConnection(asyncio.Protocol):
    """Hands what comes to the exchange it works for; one without an exchange waits in the pool."""

    __slots__ = ("_high", "_owner", "_poll", "closed", "exchange", "expires", "reused", "transport", "writable")

    transport: asyncio.Transport

    def __init__(self, owner: ConnectionOwner, buffer_bytes: int) -> None:
        self._owner = owner
        self.closed = False  # it has ended, or was given up before it stood
        self._poll: select.poll | None = None
        self._high = buffer_bytes  # unsent bytes at which the exchange is told to pause
        self.exchange: ResponseSink | None = None
        self.reused = False  # whether it has carried a response before
        self.expires = 0.0  # while it waits in the pool
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self.transport = cast("asyncio.Transport", transport)
        if self.closed:
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=self._high)
        socket = transport.get_extra_info("socket")
        self._poll = select.poll()
        self._poll.register(socket.fileno(), select.POLLIN)
        notice_silence(socket, _SILENCE_SECONDS)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        if self.exchange is not None:
            self.exchange.response_data(data)
        else:
            self.abort()  # bytes that nobody asked for could be taken for the next request's response

    def eof_received(self) -> None:
        """See ``asyncio.Protocol``; an upstream that half-closes will send nothing more."""
        self._end(orderly=True)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._end(orderly=exc is None)

    def pause_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self.writable = False
        if self.exchange is not None:
            self.exchange.upstream_writable(writable=False)

    def resume_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self.writable = True
        if self.exchange is not None:
            self.exchange.upstream_writable(writable=True)

    def is_usable(self) -> bool:
        """Whether the waiting connection still stands.

        Asks the kernel, for a close that the event loop has not come to yet would cost the next request.
        """
        return not self.closed and self._poll is not None and not self._poll.poll(0)

    def abort(self) -> None:
        """Close at once; the exchange is not told."""
        self.exchange = None
        if self._poll is None:
            self.closed = True  # given up before it stood
        elif not self.closed:
            self.transport.abort()

    def _end(self, *, orderly: bool) -> None:
        if self.closed:
            return
        self.closed = True
        self._owner.lost(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.upstream_ended(orderly=orderly)
