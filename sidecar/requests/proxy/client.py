"""One client's connection: requests in order, one at a time, each with a deadline for its head and its body."""

import asyncio
from collections.abc import Callable
from typing import cast

from sidecar.requests.proxy.context import Context
from sidecar.requests.proxy.exchange import Exchange
from sidecar.requests.proxy.head import END, has_bare_line_end, parse_request
from sidecar.requests.proxy.patience import Ending, Stall
from sidecar.requests.proxy.refusal import (
    BodyTimeout,
    HeadersTimeout,
    HeadersTooLarge,
    Refusal,
    TooManyConnections,
    error_response,
)
from sidecar.requests.proxy.sockets import has_left, reset_on_close

_NEVER = float("inf")


class ClientConnection(asyncio.Protocol):
    """Reads request heads, hands each to an exchange, and holds back what comes before its turn."""

    __slots__ = ("_authority", "_buffer", "_context", "_ending", "_exchange", "_gone", "_peers", "_reading",
                 "_searched", "_stall", "_transport", "_writable", "deadline", "write")  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, context: Context, peers: "set[ClientConnection]") -> None:
        self._context = context
        self._peers = peers
        self._authority = context.upstream.authority
        self._buffer = bytearray()  # of a head, or of what waits for the running exchange to end
        self._searched = 0  # how much of it holds no end of a head
        self._exchange: Exchange | None = None
        self._reading = True
        self._writable = True
        self._stall = Stall()
        self._gone = False
        self._ending: Ending | None = None  # from when the last response is written
        self.deadline = _NEVER

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast("asyncio.Transport", transport)
        options = self._context.options
        self._transport.set_write_buffer_limits(high=options.buffer_bytes)
        self.write: Callable[[bytes], None] = self._transport.write  # see ``ClientSide``; on every chunk's way
        self._peers.add(self)
        self.deadline = self._context.clock() + options.idle_seconds
        if len(self._peers) > options.max_connections:
            self.refuse(TooManyConnections("too many connections"))
            if len(self._peers) > 2 * options.max_connections:  # those that are being told so are bounded too
                self._transport.abort()
        elif self._context.draining:  # accepted a moment too late
            self._end()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        if self._ending is not None:
            return
        exchange = self._exchange
        if exchange is None:
            self._head_data(data)
        elif exchange.takes_input:
            rest = exchange.client_data(data)
            if rest:
                self._hold(rest)
            self._set_body_deadline()
        else:
            self._hold(data)

    def eof_received(self) -> None:
        """See ``asyncio.Protocol``; a client that half-closes within an exchange is taken to be gone, as nginx does."""
        if self._exchange is not None:
            self._leave()
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's signature
        """See ``asyncio.Protocol``."""
        self._leave()
        self._peers.discard(self)
        if not self._peers:
            self._context.no_clients.set()

    def pause_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._writable = False
        self._stall.begin()
        if self._exchange is not None:
            self._exchange.client_writable(writable=False)

    def resume_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._writable = True
        if self._exchange is not None:
            self._exchange.client_writable(writable=True)
        else:
            self._go_on()

    # -- ClientSide ------------------------------------------------------------------------------------------------

    def is_writable(self) -> bool:
        """See ``ClientSide``."""
        return self._writable

    def reading_changed(self) -> None:
        """See ``ClientSide``."""
        exchange = self._exchange
        if self._buffer and exchange is not None and exchange.takes_input:
            held = bytes(self._buffer)
            self._buffer.clear()
            exchange.client_data(held)
        if exchange is None:  # a head has its own limit
            wanted = self._writable or not self._holds_much
        else:
            wanted = not self._holds_much and not (exchange.blocked and exchange.takes_input)
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        self._set_body_deadline()

    def exchange_done(self, *, keep_alive: bool) -> None:
        """See ``ClientSide``."""
        exchange, self._exchange = self._exchange, None
        if keep_alive and not (self._context.draining and not self._buffer):
            self.deadline = self._context.clock() + self._context.options.idle_seconds
            if self._buffer:
                asyncio.get_running_loop().call_soon(self._go_on)
        elif self._buffer or (exchange is not None and exchange.takes_input):
            self._linger()
        else:
            self._end()

    def refuse(self, refusal: Refusal, *, head_only: bool = False) -> None:
        """See ``ClientSide``."""
        self._context.counters.refused[refusal.reason] += 1
        self._exchange = None
        self._transport.write(error_response(refusal.status, str(refusal), close=True, head_only=head_only))
        self._linger()

    def cut(self, *, reset: bool) -> None:
        """See ``ClientSide``."""
        self._exchange = None
        if reset:
            self._reset()
        else:
            self._end()

    # -- the relay's clock -----------------------------------------------------------------------------------------

    def expire(self) -> None:
        """The deadline has passed: for the next request, its head, its body, or the end of the connection."""
        if self._ending is not None:
            self._ending.expire()
            self.deadline = self._ending.deadline
        elif self._exchange is not None:
            self._exchange.stop(BodyTimeout("the request's body did not arrive in time"))
        elif self._buffer:
            self.refuse(HeadersTimeout("the request's head did not arrive in time"))
        else:
            self._end()

    def look(self, now: float) -> None:
        """Notice that the client is gone while its bytes are not being read, or that it takes none of ours."""
        if self._transport.is_closing():
            return
        if not self._reading and has_left(self._transport.get_extra_info("socket")):
            self._leave()
            self._transport.abort()
        elif not self._writable and self._exchange is not None and self._is_stalled(now):
            self._context.counters.refused["send_timeout"] += 1
            self._leave()
            self._reset()

    def drain(self) -> None:
        """End the connection if it is idle; otherwise it ends with its current exchange."""
        if self._exchange is None and not self._buffer and self._ending is None:
            self._end()

    def kill(self) -> None:
        """End the connection now, whatever it does."""
        if self._exchange is not None:
            self._exchange.stop(None)
        self._transport.abort()

    @property
    def busy(self) -> bool:
        """Whether an exchange runs."""
        return self._exchange is not None

    # -- within ----------------------------------------------------------------------------------------------------

    def _head_data(self, data: bytes) -> None:
        if not self._writable:  # the response before is still on its way
            self._hold(data)
            return
        buffer, options = self._buffer, self._context.options
        if not buffer:
            end = data.find(END) + len(END)  # the usual case: the whole head in one piece
            if len(END) < end <= options.max_header_bytes and not data.startswith(b"\r\n"):
                self._begin(data[:end], data[end:])
                return
            self.deadline = self._context.clock() + options.header_seconds
        buffer += data
        if buffer.startswith(b"\r\n"):
            del buffer[:2]  # an empty line before a request is ignored (RFC 9112, 2.2)
        end = buffer.find(END, self._searched)
        if (len(buffer) if end < 0 else end + len(END)) > options.max_header_bytes:
            self.refuse(HeadersTooLarge("the request's head is too large"))
        elif end >= 0:
            head, rest = bytes(buffer[: end + len(END)]), bytes(buffer[end + len(END) :])
            buffer.clear()
            self._searched = 0
            self._begin(head, rest)
        elif has_bare_line_end(buffer):
            self.refuse(Refusal("line end other than CRLF"))
        else:
            self._searched = max(0, len(buffer) - len(END) + 1)

    def _begin(self, head: bytes, rest: bytes) -> None:
        try:
            request = parse_request(head, self._authority)
        except Refusal as refusal:
            self.refuse(refusal)
            return
        exchange = self._exchange = Exchange(self, request, self._context)
        self.deadline = _NEVER
        rest = exchange.begin(rest)
        if self._exchange is exchange:
            if rest:
                self._hold(rest)
            elif exchange.takes_input:
                self._set_body_deadline()

    def _go_on(self) -> None:
        """Take up what was held back."""
        if self._exchange is None and self._ending is None and not self._gone and self._buffer:
            held = bytes(self._buffer)
            self._buffer.clear()
            self._searched = 0
            self._head_data(held)
            self.reading_changed()

    def _hold(self, data: bytes) -> None:
        self._buffer += data
        if self._holds_much:
            self.reading_changed()

    @property
    def _holds_much(self) -> bool:
        return len(self._buffer) > self._context.options.buffer_bytes

    def _set_body_deadline(self) -> None:
        exchange = self._exchange
        if exchange is not None:
            waiting = exchange.awaits_body
            self.deadline = self._context.clock() + self._context.options.body_idle_seconds if waiting else _NEVER

    def _is_stalled(self, now: float) -> bool:
        return self._stall.seconds(self._transport, now) >= self._context.options.send_idle_seconds

    def _reset(self) -> None:
        if not self._transport.is_closing():
            reset_on_close(self._transport.get_extra_info("socket"))
        self._transport.abort()

    def _leave(self) -> None:
        self._gone = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    def _end(self) -> None:
        """Close once all that is written has been sent."""
        self._begin_end()
        self._transport.close()

    def _linger(self) -> None:
        """The same, but read on and drop what comes, or the kernel's reset could overtake the answer."""
        self._begin_end()
        if not self._transport.is_closing():
            if not self._reading:
                self._reading = True
                self._transport.resume_reading()
            self._transport.write_eof()

    def _begin_end(self) -> None:
        self._ending = Ending(self._transport, self._context)
        self.deadline = self._ending.deadline
        self._buffer.clear()
