"""Server-sent events as vLLM streams them: how many carried tokens, when the first did, and what the last ones say.

vLLM passes its server one event per piece; a proxy reads them merged and split arbitrarily by TCP. An event ends with
an empty line. JSON has no raw line breaks, so no output of the model can look like the end or the beginning of an
event.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from sidecar.requests.observe.endpoint import MESSAGES, RESPONSES, Endpoint
from sidecar.requests.observe.payload import ReplyFields, read_reply

END_OF_EVENT: Final = b"\n\n"
FIRST_CHOICE: Final = b'"choices":[{'
_LAST_EVENTS: Final = 3  # the usage or an error, `[DONE]` or `message_stop`, and the last one with tokens
_BEGINNING: Final = 256  # bytes of an oversized event that show whether it has tokens
_MOST_OFFSETS: Final = 16_384
_DONE: Final = b"data: [DONE]"
_ROLE: Final = b'"role":"'
_FINAL_EVENTS: Final = (
    _DONE,
    b"event: message_stop\n",
    b"event: response.completed\n",
    b"event: response.incomplete\n",
)


class StreamReader:
    """Reads one stream; keeps an unfinished event of at most ``max_bytes`` and the last few complete ones.

    ``clock`` gives seconds; ``first_token`` is its reading when the first event with tokens was complete, ``offsets``
    (if ``keep_offsets``) are its readings for all such events, and ``events`` is their number. ``too_large``: some
    event was larger than ``max_bytes``; it is counted, but not read.
    """

    def __init__(
        self, endpoint: Endpoint, *, max_bytes: int, clock: Callable[[], float], keep_offsets: bool = False
    ) -> None:
        self.events = 0
        self.first_token: float | None = None
        self.offsets: list[float] = []
        self.too_large = False
        self._endpoint = endpoint
        self._clock = clock
        self._max_bytes = max_bytes
        self._keep_offsets = keep_offsets
        self._rest = bytearray()  # the unfinished event
        self._skipping = False  # the unfinished event is too large; only its last byte is kept
        self._last: deque[bytes] = deque(maxlen=_LAST_EVENTS)

    def feed(self, piece: bytes) -> None:
        """Take the next bytes; only these are searched, however long the unfinished event is."""
        rest = self._rest
        if rest:
            rest += piece
            if rest.find(END_OF_EVENT, len(rest) - len(piece) - 1) < 0:
                self._bound()
                return
            piece = bytes(rest)
            rest.clear()
        *events, unfinished = piece.split(END_OF_EVENT)
        if events and self._skipping:
            self._skipping = False
            del events[0]
        for event in events:
            self._take(event)
        rest += unfinished
        self._bound()

    def has_ended(self) -> bool:
        """Whether the event that ends vLLM's streams has passed."""
        return bool(self._last) and self._last[-1].startswith(_FINAL_EVENTS)

    def last(self) -> Iterator[ReplyFields]:
        """What the last events say, newest first, without those that could not be read."""
        for event in reversed(self._last):
            fields = None if event.startswith(_DONE) else read_reply(_data_of(event))
            if fields is not None:
                yield fields

    def _take(self, event: bytes) -> None:
        """Look at one complete event, without the empty line that ends it."""
        if not event or event.startswith(b":"):
            return  # a comment keeps a connection alive
        if len(event) > self._max_bytes:
            self.too_large = True
            event = event[:_BEGINNING]
        else:
            self._last.append(event)
        if not self._has_tokens(event):
            return
        self.events += 1
        if self.first_token is None:
            self.first_token = self._clock()
        if self._keep_offsets and len(self.offsets) < _MOST_OFFSETS:
            self.offsets.append(self._clock())

    def _has_tokens(self, event: bytes) -> bool:
        """Whether the event carries generated tokens; on ``/v1/messages`` only the one sent with the first token.

        In chat and text completions all events from the first one with tokens do, except the usage or error among
        the last ones. The model's text cannot look like a field: within a string, each quotation mark is escaped.
        """
        if self._endpoint == MESSAGES:
            return event.startswith(b"event: message_start\n")
        if self._endpoint == RESPONSES:
            return event.startswith(b"event: response.") and b".delta\ndata: {" in event
        if self.first_token is None and (_ROLE in event or FIRST_CHOICE not in event):
            return False  # the role comes in its own event
        return event.startswith(b"data: {")

    def _bound(self) -> None:
        """Discard an unfinished event that is too large, except its last byte, which may begin the event's end."""
        if not self._skipping and len(self._rest) > self._max_bytes:
            self._skipping = True
            self._take(bytes(self._rest))
        if self._skipping:
            del self._rest[:-1]


def _data_of(event: bytes) -> bytes:
    """The data of one event; empty if it has none."""
    _, found, data = (b"\n" + event).partition(b"\ndata:")
    return data.partition(b"\n")[0] if found else b""
