"""One client's connection: requests in order, one at a time, each with a deadline for its head and its body."""

import asyncio
import select
import socket
import struct
from collections.abc import Callable
from typing import cast

from sidecar.requests.relay.context import Context
from sidecar.requests.relay.exchange import Exchange
from sidecar.requests.relay.head import END, has_bare_line_end, parse_request
from sidecar.requests.relay.refusal import (
    BodyTimeout,
    HeadersTimeout,
    HeadersTooLarge,
    Refusal,
    TooManyConnections,
    error_response,
)

_NEVER = float("inf")
_RESET = struct.pack("ii", 1, 0)  # struct linger: on, for 0 seconds


class ClientConnection(asyncio.Protocol):
    """Reads request heads, hands each to an exchange, and holds back what comes before its turn."""

    __slots__ = ("_authority", "_buffer", "_context", "_ending", "_exchange", "_final_deadline", "_gone", "_peers",
                 "_reading", "_searched", "_transport", "_writable", "deadline", "write")  # fmt: skip

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
        self._gone = False
        self._ending = False  # the last response is written: whatever still comes is dropped
        self._final_deadline = _NEVER
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
        if self._ending:
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
            self._flush_held(exchange)
        wanted = len(self._buffer) <= self._context.options.buffer_bytes and (
            exchange is None or not (exchange.blocked and exchange.takes_input)
        )
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        self._set_body_deadline()

    def exchange_done(self, *, keep_alive: bool) -> None:
        """See ``ClientSide``."""
        unread = self._exchange is not None and self._exchange.takes_input
        self._exchange = None
        if keep_alive and not (self._context.draining and not self._buffer):
            self.deadline = self._context.clock() + self._context.options.idle_seconds
            if self._buffer:
                asyncio.get_running_loop().call_soon(self._go_on)
        elif unread or self._buffer:
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
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()
        else:
            self._end()

    # -- the relay's clock -----------------------------------------------------------------------------------------

    def expire(self) -> None:
        """The deadline has passed: for the next request, its head, its body, or the end of the connection."""
        if self._ending:
            self._expire_end()
        elif self._exchange is not None:
            self._exchange.stop(BodyTimeout("the request's body did not arrive in time"))
        elif self._buffer:
            self.refuse(HeadersTimeout("the request's head did not arrive in time"))
        else:
            self._end()

    def look_for_close(self) -> None:
        """Notice that the client is gone while its bytes are not being read."""
        if not self._reading and not self._transport.is_closing():
            poll = select.poll()
            poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
            if poll.poll(0):
                self._leave()
                self._transport.abort()

    def drain(self) -> None:
        """End the connection if it is idle; otherwise it ends with its current exchange."""
        if self._exchange is None and not self._buffer and not self._ending:
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
            self._set_body_deadline()

    def _go_on(self) -> None:
        """Take up what was held back."""
        if self._exchange is None and not self._ending and not self._gone and self._buffer:
            held = bytes(self._buffer)
            self._buffer.clear()
            self._searched = 0
            self._head_data(held)
            self.reading_changed()

    def _hold(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > self._context.options.buffer_bytes:
            self.reading_changed()

    def _flush_held(self, exchange: Exchange) -> None:
        held = bytes(self._buffer)
        self._buffer.clear()
        exchange.client_data(held)

    def _set_body_deadline(self) -> None:
        exchange = self._exchange
        if exchange is not None:
            waiting = exchange.awaits_body
            self.deadline = self._context.clock() + self._context.options.body_idle_seconds if waiting else _NEVER

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
        self._ending = True
        self._buffer.clear()
        now, options = self._context.clock(), self._context.options
        self.deadline = now + options.linger_seconds
        self._final_deadline = now + options.idle_seconds

    def _expire_end(self) -> None:
        # A slow reader gets the time to take the rest, within bounds.
        now = self._context.clock()
        if self._transport.get_write_buffer_size() and now < self._final_deadline:
            self.deadline = now + self._context.options.linger_seconds
        else:
            self._transport.abort()
