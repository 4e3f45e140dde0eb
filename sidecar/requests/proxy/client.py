"""A client connection: requests in order, one at a time, each with a deadline for its head and its body."""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import cast

from sidecar.errors import Refusal
from sidecar.http.unsent import is_sending, progress
from sidecar.requests.proxy.context import Context
from sidecar.requests.proxy.exchange import Exchange
from sidecar.requests.proxy.head import HeadReader
from sidecar.requests.proxy.outcomes import REFUSALS, error_response
from sidecar.requests.proxy.patience import NEVER, BodyPatience, SendPatience
from sidecar.requests.proxy.request import parse_request
from sidecar.requests.proxy.sockets import has_left, reset_on_close


class ClientConnection(asyncio.BufferedProtocol):
    """Reads request heads, starts an exchange for each, and holds back what belongs to the next one."""

    __slots__ = (
        "_body_patience", "_buffer", "_clients", "_context", "_ends", "_exchange", "_head", "_held", "_idle",
        "_reading", "_send_patience", "_transport", "_writable", "deadline", "write",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(
        self, context: Context, clients: "set[ClientConnection]", idle: "dict[ClientConnection, None]"
    ) -> None:
        self._context = context
        self._clients = clients  # all open connections
        self._idle = idle  # those between requests, longest idle first
        self._buffer = context.pool.buffer  # to read into; one for all connections
        self._head = HeadReader(context.options.max_header_bytes, skip_empty_line=True)
        self._held = bytearray()  # pipelined: waits for the current exchange to end
        self._exchange: Exchange | None = None
        self._reading = True
        self._writable = True
        self._send_patience = SendPatience()
        self._body_patience = BodyPatience(context.options)
        self._ends: float | None = None  # when the connection is aborted, once the last response is written
        self.deadline = NEVER

    # -- asyncio.BufferedProtocol ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._context.options.buffer_bytes)
        self.write: Callable[[bytes], None] = self._transport.write  # see ``ClientSide``
        most = self._context.max_clients
        if len(self._clients) >= most:
            any(other.evict() for other in list(islice(self._idle, 64)))  # not all: that could take long
        self._clients.add(self)
        self._begin_idling()
        if len(self._clients) > most:
            self.refuse(Refusal("too many connections", "too_many_connections"))
            if len(self._clients) > 2 * most:  # those being refused are bounded too
                self._transport.abort()
        elif self._context.draining:  # accepted just too late
            self._end()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """See ``UpstreamConnection.get_buffer``."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See ``asyncio.BufferedProtocol``."""
        data, exchange = bytes(self._buffer[:nbytes]), self._exchange
        if self._ends is not None:
            return
        if exchange is None:
            self._head_data(data)
        elif exchange.takes_input:
            self._hold(exchange.client_data(data))
            self._set_body_deadline()
        else:
            self._hold(data)

    def eof_received(self) -> None:
        """See ``asyncio.BufferedProtocol``; a client that half-closes during an exchange is gone, as in nginx."""
        if self._exchange is not None:
            self._leave()
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """See ``asyncio.BaseProtocol``."""
        self._leave()
        self._idle.pop(self, None)
        self._clients.discard(self)
        if not self._clients:
            self._context.no_clients.set()

    def pause_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._writable = False
        self._send_patience.begin()
        if self._exchange is not None:
            self._exchange.client_writable(writable=False)

    def resume_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._writable = True
        if self._exchange is not None:
            self._exchange.client_writable(writable=True)
        else:
            self._continue()

    # -- ClientSide ------------------------------------------------------------------------------------------------

    def is_writable(self) -> bool:
        """See ``ClientSide``."""
        return self._writable

    def reading_changed(self) -> None:
        """See ``ClientSide``."""
        exchange = self._exchange
        if self._held and exchange is not None and exchange.takes_input:
            held, self._held = bytes(self._held), bytearray()
            exchange.client_data(held)
        if exchange is None:  # a head has its own limit
            wanted = self._writable or not self._holds_much
        else:
            wanted = not self._holds_much and not (exchange.blocked and exchange.takes_input)
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()
        self._set_body_deadline()

    def exchange_done(self, *, keep_alive: bool) -> None:
        """See ``ClientSide``."""
        exchange, self._exchange = self._exchange, None
        if keep_alive:
            self._begin_idling()
            if self._held:
                asyncio.get_running_loop().call_soon(self._continue)
        elif self._held or (exchange is not None and exchange.takes_input):
            self._linger()
        else:
            self._end()

    def refuse(self, refusal: Refusal, *, head_only: bool = False) -> None:
        """See ``ClientSide``."""
        self._context.counters.refused[refusal.reason] += 1
        self._exchange = None
        self.write(error_response(REFUSALS[refusal.reason], str(refusal), close=True, head_only=head_only))
        self._linger()

    def cut(self, *, reset: bool) -> None:
        """See ``ClientSide``."""
        self._exchange = None
        (self._reset if reset else self._end)()

    # -- called by the server --------------------------------------------------------------------------------------

    def expire(self) -> None:
        """The deadline has passed: for the next request, its head, its body, or the end of the connection."""
        if self._ends is not None:
            now = self._context.clock()
            if is_sending(self._transport) and now < self._ends:
                # A slow reader may read the rest.
                self.deadline = now + self._context.options.linger_seconds
            else:
                self._transport.abort()
        elif self._exchange is not None:
            self._exchange.stop(Refusal("the request's body did not arrive in time", "body_timeout"))
        elif self._head.begun or self._held:
            self.refuse(Refusal("the request's head did not arrive in time", "headers_timeout"))
        else:
            self._end()

    def check(self, now: float) -> None:
        """Notice a client that has gone while its bytes are not read, or that does not read its response."""
        if self._transport.is_closing():
            return
        stalled = 0.0 if self._writable else self._send_patience.seconds(progress(self._transport), now)
        if not self._reading and has_left(self._transport.get_extra_info("socket")):
            self._leave()
            self._transport.abort()
        elif self._exchange is not None and stalled >= self._context.options.send_idle_seconds:
            self._context.counters.refused["send_timeout"] += 1
            self._leave()
            self._reset()

    def drain(self) -> None:
        """End the connection if it stays idle, otherwise after its current exchange."""
        if self._exchange is None and not self._head.begun and not self._held and self._ends is None:
            self._begin_idling()

    def evict(self) -> bool:
        """End the idle connection to make room for another client, unless its last response is still being sent."""
        del self._idle[self]
        if is_sending(self._transport):
            self._idle[self] = None  # to be checked again after the others
            return False
        self._context.counters.refused["evicted"] += 1
        self._clients.discard(self)
        self._transport.abort()
        return True

    def kill(self) -> None:
        """End the connection now, whatever its state."""
        if self._exchange is not None:
            self._exchange.stop(None)
        self._transport.abort()

    @property
    def busy(self) -> bool:
        """Whether an exchange is in progress."""
        return self._exchange is not None

    # -- inside ----------------------------------------------------------------------------------------------------

    def _head_data(self, data: bytes) -> None:
        if not self._writable:  # the previous response is still being sent
            self._hold(data)
            return
        reader = self._head
        begun = reader.begun
        try:
            found = reader.feed(data)
            if found is None:
                if reader.begun and not begun:
                    self._idle.pop(self, None)
                    self.deadline = self._context.clock() + self._context.options.header_seconds
                return
            request = parse_request(found[0], self._context.upstream.authority)
        except Refusal as refusal:
            self.refuse(refusal)
            return
        self._idle.pop(self, None)
        exchange = self._exchange = Exchange(self, request, self._context)
        self.deadline = NEVER
        rest = exchange.begin(found[1])
        if self._exchange is exchange:
            self._hold(rest)
            self._set_body_deadline()

    def _begin_idling(self) -> None:
        options = self._context.options
        # While draining, a client that was promised keep-alive may already be sending: closing now would fail it.
        seconds = options.linger_seconds if self._context.draining else options.idle_seconds
        self.deadline = self._context.clock() + seconds
        self._idle[self] = None

    def _continue(self) -> None:
        """Process what was held back."""
        if self._exchange is None and self._ends is None and self._held and not self._transport.is_closing():
            held, self._held = bytes(self._held), bytearray()
            self._head_data(held)
            self.reading_changed()

    def _hold(self, data: bytes) -> None:
        self._held += data
        if self._holds_much:
            self.reading_changed()

    @property
    def _holds_much(self) -> bool:
        return len(self._held) > self._context.options.buffer_bytes

    def _set_body_deadline(self) -> None:
        if (exchange := self._exchange) is not None:
            now = self._context.clock()
            self.deadline = self._body_patience.deadline(exchange.received, now, waiting=exchange.awaits_body)

    def _leave(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    def _reset(self) -> None:
        if not self._transport.is_closing():
            reset_on_close(self._transport.get_extra_info("socket"))
        self._transport.abort()

    def _end(self) -> None:
        """Close once everything written has been sent."""
        self._begin_end()
        self._transport.close()

    def _linger(self) -> None:
        """The same, but keep reading and discarding, since the kernel's reset could overtake the response."""
        self._begin_end()
        if not self._transport.is_closing():
            if not self._reading:
                self._reading = True
                self._transport.resume_reading()
            if self._transport.can_write_eof():  # not with TLS
                self._transport.write_eof()

    def _begin_end(self) -> None:
        now = self._context.clock()
        self.deadline = now + self._context.options.linger_seconds
        self._ends = now + self._context.options.idle_seconds
        self._idle.pop(self, None)
        self._held.clear()
        self._head.clear()
