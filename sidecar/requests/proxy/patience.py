"""How long a client is waited for that doesn't take the bytes meant for it."""

import asyncio

from sidecar.requests.proxy.context import Context


class Stall:
    """Tells for how long a connection has taken none of the bytes that wait for it."""

    __slots__ = ("_since", "_unsent")

    def __init__(self) -> None:
        self._since = 0.0
        self._unsent = 0  # bytes, at the last look

    def begin(self) -> None:
        """More bytes wait than should: the time counts from the next look on."""
        self._unsent = 0

    def seconds(self, transport: asyncio.Transport, now: float) -> float:
        """To be asked every now and then, while bytes wait."""
        unsent = transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._since = unsent, now
        return now - self._since


class Ending:
    """A connection's last moments: what is written is still sent, within bounds, and what comes is dropped."""

    __slots__ = ("_context", "_final", "_transport", "deadline")

    def __init__(self, transport: asyncio.Transport, context: Context) -> None:
        self._transport = transport
        self._context = context
        now, options = context.clock(), context.options
        self.deadline = now + options.linger_seconds
        self._final = now + options.idle_seconds

    def expire(self) -> None:
        """The deadline has passed: a slow reader gets the time to take the rest, others are cut."""
        now = self._context.clock()
        if self._transport.get_write_buffer_size() and now < self._final:
            self.deadline = now + self._context.options.linger_seconds
        else:
            self._transport.abort()
