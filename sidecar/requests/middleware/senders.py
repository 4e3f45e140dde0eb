"""What is known of the middleware's senders: who has said what, what got lost, and which requests are open."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

import msgspec

from sidecar.requests.middleware.wire import (
    DROPPED_INTERNAL,
    DROPPED_QUEUE_FULL,
    Finished,
    Packet,
    Started,
    abandoned,
    is_consistent,
    record_of,
)
from sidecar.requests.observe.exchange import Fault
from sidecar.requests.record import RequestSink, RequestStart

LOST_ON_THE_WAY: Final = "gap"  # sent, but never arrived whole
SENDER_GONE: Final = "sender_gone"  # begun, then its process went away
CONTRADICTORY: Final = "contradictory"
TOO_MANY_OPEN: Final = "too_many_open"
_UNNAMED: Final = "other"

_SENDERS_REASONS: Final = frozenset({DROPPED_QUEUE_FULL, DROPPED_INTERNAL, *(fault.value for fault in Fault)})
REASONS: Final = _SENDERS_REASONS | {
    LOST_ON_THE_WAY, SENDER_GONE, CONTRADICTORY, TOO_MANY_OPEN, _UNNAMED, "malformed", "too_many_senders",
}  # fmt: skip
"""Every reason that a ``MiddlewareReceiver`` gives its sink."""

_MOST_OPEN: Final = 65_536  # requests that one sender has begun
_MOST_SENDERS: Final = 256  # remembered, most of them restarted processes
_DECODER: Final = msgspec.msgpack.Decoder(Packet)


@dataclass(slots=True)
class _Sender:
    expected: int  # the number of its next event
    open: dict[int, Started] = field(default_factory=dict)
    given_up: int = 0  # requests numbered below were given up: an end that comes after all is no second one


class SenderBook:
    """Keeps each sender's account and delivers its events."""

    def __init__(self, sink: RequestSink, wall: Callable[[], float]) -> None:
        self._sink = sink
        self._wall = wall
        self._senders: dict[str, _Sender] = {}

    def take(self, data: memoryview) -> str | None:
        """Deliver a packet's events; the sender's name, or None where it is no packet."""
        try:
            packet = _DECODER.decode(data)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None
        sender = self._senders.pop(packet.sender, None) or _Sender(expected=packet.first)
        self._senders[packet.sender] = sender  # the latest heard of is last
        if packet.first > sender.expected:
            self._sink.dropped(LOST_ON_THE_WAY, packet.first - sender.expected)
        sender.expected = packet.first + len(packet.events)
        for reason, count in packet.dropped.items():
            self._sink.dropped(reason if reason in _SENDERS_REASONS else _UNNAMED, count)
        for event in packet.events:
            if isinstance(event, Started):
                self._started(packet.sender, sender, event)
            else:
                self._finished(packet.sender, sender, event)
        self._abandon(packet.sender, sender, packet.oldest_open)  # the drop of their ends is counted already
        self._forget_senders()
        return packet.sender

    def give_up(self, name: str) -> None:
        """A sender is gone for good: so are the requests that it had begun."""
        sender = self._senders.get(name)
        if sender is not None and sender.open:
            sender.given_up = max(sender.open) + 1
            self._sink.dropped(SENDER_GONE, len(sender.open))
            self._abandon(name, sender, sender.given_up)

    def give_up_all(self) -> None:
        """No sender will be heard of again."""
        for name in self._senders:
            self.give_up(name)

    def _started(self, name: str, sender: _Sender, event: Started) -> None:
        if event.number in sender.open or event.number < sender.given_up:
            self._sink.dropped(CONTRADICTORY, 1)
        elif len(sender.open) >= _MOST_OPEN:
            self._sink.dropped(TOO_MANY_OPEN, 1)
        else:
            sender.open[event.number] = event
            self._sink.started(RequestStart(_id(name, event.number), event.start))

    def _finished(self, name: str, sender: _Sender, event: Finished) -> None:
        began = sender.open.pop(event.number, None)
        if began is None and event.number < sender.given_up:
            return  # it was given up, counted and told as aborted
        if is_consistent(event):
            self._sink.finished(record_of(_id(name, event.number), event))
            return
        self._sink.dropped(CONTRADICTORY, 1)
        if began is not None:
            self._sink.finished(abandoned(_id(name, event.number), began, self._wall()))

    def _abandon(self, name: str, sender: _Sender, below: int) -> None:
        """End the open requests numbered under ``below`` as aborted: their own end will not come."""
        for number in list(takewhile(lambda number: number < below, sender.open)):  # they are in order of number
            self._sink.finished(abandoned(_id(name, number), sender.open.pop(number), self._wall()))

    def _forget_senders(self) -> None:
        while len(self._senders) > _MOST_SENDERS:
            oldest = next(iter(self._senders))
            self.give_up(oldest)
            del self._senders[oldest]


def _id(name: str, number: int) -> str:
    return f"{name}-{number:x}"
