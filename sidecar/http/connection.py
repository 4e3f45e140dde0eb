"""One connection to a guarded server: it forwards to aiohttp's protocol, and cuts at a deadline.

aiohttp alone never closes the connection of a client that sends half a head, or nothing, or does not read its response
(measured on 3.14). Here a connection has two states. While a handler runs there is no deadline: limiting the body is
up to the handler. Otherwise there is one: ``header_seconds`` from the connection's or the next request's first byte
until its handler starts, and ``idle_seconds`` after a handler has returned, within which the client must read the
response and begin the next request.
"""

import asyncio
from typing import Final, Protocol, cast

from sidecar.http.hosts import address_of
from sidecar.http.unsent import is_sending

_READ_BYTES: Final = 16_384


class Gate(Protocol):
    """The server, as its connections see it."""

    def admit(self, connection: "Connection") -> asyncio.Protocol | None:
        """Aiohttp's protocol for a new connection; None if the limits allow no more."""

    def forget(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection of ``protocol`` is gone; idempotent."""

    def timed_out(self) -> None:
        """A connection was cut at its deadline, not merely because it was idle."""


class Connection(asyncio.BufferedProtocol):
    """Forwards everything to aiohttp's protocol and cuts the connection at its deadline.

    It reads at most 16 KiB at a time: one-byte chunks cost aiohttp's parser 0.2 ms a KiB. ``address`` is the client's;
    ``idle_since`` is when it connected or its last handler returned, by the loop's clock.
    """

    _transport: asyncio.Transport

    def __init__(self, server: Gate, header_seconds: float, idle_seconds: float) -> None:
        self._server = server
        self._buffer = memoryview(bytearray(_READ_BYTES))  # asyncio's TLS fills a slice, which a bytearray would copy
        self._header_seconds = header_seconds
        self._idle_seconds = idle_seconds
        self.address = ""
        self.is_loopback = False
        self.is_serving = False
        self.idle_since = asyncio.get_running_loop().time()
        self._inner: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_discarding = False
        self._is_head_begun = True  # a new connection owes its first head from the start

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks whether the limits allow the connection."""
        # Cast because uvloop's transports do not subclass asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self.address = (transport.get_extra_info("peername") or ("",))[0]
        known = address_of(self.address)  # None if the client is gone already
        self.is_loopback = known is not None and (getattr(known, "ipv4_mapped", None) or known).is_loopback
        self._inner = self._server.admit(self)
        if self._inner is None:
            self._transport.abort()
            return
        self._inner.connection_made(transport)
        self._arm(self._header_seconds)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """The buffer to read into."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """The first byte of a head starts its deadline."""
        if not self.is_serving and not self._is_head_begun:
            self._is_head_begun = True
            self._arm(self._header_seconds)
        if self._inner is not None and not self._is_discarding:
            self._inner.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        """Forwards."""
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        """Forwards."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Forwards."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection no longer counts."""
        self._disarm()
        if self._inner is not None:
            self._server.forget(self._inner)
            self._inner.connection_lost(exc)
            self._inner = None

    @property
    def is_sending(self) -> bool:
        """Whether the client has yet to take some of its last response."""
        return is_sending(self._transport)

    def serving(self) -> None:
        """A handler starts: there is no deadline until it returns."""
        self.is_serving = True
        self._disarm()

    def waiting(self) -> None:
        """The handler has returned."""
        self.is_serving = False
        self.idle_since = asyncio.get_running_loop().time()
        self._is_head_begun = False
        if self._inner is not None:
            self._arm(self._idle_seconds)

    def discard(self) -> None:
        """Drops the rest of a request's body unparsed: the request has been answered."""
        self._is_discarding = True

    def cut(self) -> None:
        """Aborts, since closing would wait for a client that does not read; the connection no longer counts."""
        if self._inner is not None:
            self._server.forget(self._inner)
        self._transport.abort()

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self._is_head_begun or self.is_sending:
            self._server.timed_out()
        self._transport.abort()
