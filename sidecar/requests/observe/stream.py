"""Server-sent events as vLLM streams them: how many carried tokens, when the first did, and what the last ones say.

vLLM passes its server one event per piece; a proxy reads them merged and split arbitrarily by TCP. An event ends with
an empty line. JSON has no raw line breaks, so nothing that the model says can look like the end or the beginning of an
event.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from sidecar.requests.observe.endpoint import MESSAGES, RESPONSES, Endpoint
from sidecar.requests.observe.payload import UNREADABLE, ReplyFields, read_reply

END_OF_EVENT: Final = b"\n\n"
_LAST_EVENTS: Final = 3  # the usage or an error, `[DONE]` or `message_stop`, and the last one with tokens
_BEGINNING: Final = 256  # bytes of an event that is too large which say whether it has tokens
_MOST_OFFSETS: Final = 16_384
_DONE: Final = b"data: [DONE]"
_FINAL_EVENTS: Final = (
    _DONE,
    b"event: message_stop\n",
    b"event: response.completed\n",
    b"event: response.incomplete\n",
)


class _ChunkDelta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _ChunkChoice(msgspec.Struct):
    delta: _ChunkDelta | None = None


class _ChunkUsage(msgspec.Struct):
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_ChunkChoice] = []
    usage: _ChunkUsage | None = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


class StreamReader:
    """Reads one stream; keeps an unfinished event of at most ``max_bytes`` and the last few complete ones.

    ``clock`` gives seconds; ``first_token`` is its reading when the first event with tokens was complete, ``offsets``
    (if ``keep_offsets``) those of all of them. ``events`` is their number. ``too_large``: some event was larger than
    ``max_bytes``; it is counted and not read.
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
        self._rest = b""  # the unfinished event
        self._skipping = False  # the unfinished event is too large; only its last byte is kept
        self._last: deque[bytes] = deque(maxlen=_LAST_EVENTS)

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""
        *events, self._rest = (self._rest + piece).split(END_OF_EVENT)
        if events and self._skipping:
            self._skipping = False
            del events[0]
        for event in events:
            self._take(event)
        if self._skipping or len(self._rest) > self._max_bytes:
            self._skip()

    def has_ended(self) -> bool:
        """Whether the last event of vLLM's streams has passed."""
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
        """Whether the event carries generated tokens.

        In chat and text completions, each event after the first one with tokens does, but for the usage or error among
        the last ones.
        """
        if self._endpoint == MESSAGES:
            # vLLM makes up the signature's delta; it is not a token.
            return event.startswith(b"event: content_block_delta\n") and b'"type":"signature_delta"' not in event
        if self._endpoint == RESPONSES:
            return event.startswith(b"event: response.") and b".delta\ndata: {" in event
        return event.startswith(b"data: {") and (self.first_token is not None or _is_token_chunk(event))

    def _skip(self) -> None:
        """Discard an event that is too large."""
        if not self._skipping:
            self._skipping = True
            self._take(self._rest)
        self._rest = self._rest[-1:]


def _data_of(event: bytes) -> bytes:
    """The data of one event; empty if it has none."""
    _, found, data = (b"\n" + event).partition(b"\ndata:")
    return data.partition(b"\n")[0] if found else b""


def _is_token_chunk(event: bytes) -> bool:
    """Whether a chunk of a completion has tokens, unlike the one with the role, an echoed prompt, and the usage."""
    try:
        chunk = _CHUNK.decode(_data_of(event))
    except UNREADABLE:
        return False
    if chunk.usage is not None and chunk.usage.completion_tokens == 0:
        return False
    return any(choice.delta is None or not _is_opening(choice.delta) for choice in chunk.choices)


def _is_opening(delta: _ChunkDelta) -> bool:
    """The delta that vLLM sends before any token: a role and no text."""
    return delta.role is not None and not (delta.content or delta.reasoning or delta.tool_calls)
