"""Server-sent events as vLLM streams them: how many carried tokens, when the first did, and what the last ones say.

vLLM hands its server one event a piece; a proxy reads them merged and split as TCP pleases. So pieces are only kept
on the way, and looked at together once some kilobytes have gathered: that costs a chunk least, and the result can't
depend on where the cuts were. Beside vLLM, pieces that have shown to be whole events are counted without a look into
each. An event ends with an empty line; JSON has no raw line breaks, so neither a line's start nor an event's end can be
forged by what the model says.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from sidecar.requests.observe.payload import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Endpoint
from sidecar.requests.observe.pieces import Gatherer
from sidecar.requests.observe.values import ABSENT, UNREADABLE

_END: Final = b"\n\n"
_GATHERED: Final = 65_536  # bytes of pieces to look at together: 15 µs of work, once in about 200 events
_LAST_EVENTS: Final = 3  # the usage or error, `[DONE]` or `message_stop`, and one to spare
_MOST_OFFSETS: Final = 16_384

_TOKENS: Final = {
    # What every event with tokens has and, once the first is found, no other but the few that the last ones show.
    CHAT: b"\n\ndata: {",
    COMPLETIONS: b"\n\ndata: {",
    RESPONSES: b".delta\ndata: {",
    MESSAGES: b"\n\nevent: content_block_delta\n",
}
_NAMED: Final = b"\n\nevent: "  # `/v1/responses` and `/v1/messages`: only their first event says what no other does
_BARE: Final = frozenset({CHAT, COMPLETIONS})  # every event after the first token's has tokens, but for the last ones
_SHORTEST: Final = 64  # bytes; a chunk of tokens has more, a comment that keeps a connection alive fewer
_ENDING: Final = 5  # pieces: what may come after the last tokens, and an empty one
_SIGNATURE: Final = b'"type":"signature_delta"'  # a `/v1/messages` delta that vLLM makes up: no token


class _ChunkDelta(msgspec.Struct):
    role: str | None = None
    content: msgspec.Raw = ABSENT
    reasoning: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT


class _ChunkChoice(msgspec.Struct):
    delta: _ChunkDelta | None = None


class _ChunkUsage(msgspec.Struct):
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_ChunkChoice] = []
    usage: _ChunkUsage | None = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_NO_TEXT: Final = (ABSENT, msgspec.Raw(b"null"), msgspec.Raw(b'""'), msgspec.Raw(b"[]"))


def data_of(event: bytes) -> bytes:
    """The data of one event, less its line's name; empty where it has none, as a comment."""
    begin = 0 if event.startswith(b"data:") else event.find(b"\ndata:") + 1
    if begin == 0 and not event.startswith(b"data:"):
        return b""
    end = event.find(b"\n", begin)
    return event[begin + 5 : end if end >= 0 else len(event)].strip()


class StreamReader(Gatherer):
    """Reads one stream. Whatever is sent, it keeps some kilobytes and at most a few events of ``max_bytes``.

    ``clock`` gives seconds; ``first_token`` is its reading when the first event with tokens was complete.
    ``whole_events`` says that each piece should be one event, as a server's application sends them.
    """

    __slots__ = (
        "_clock",
        "_last",
        "_mark",
        "_max_bytes",
        "_offsets",
        "_rest",
        "_skipping",
        "_whole",
        "endpoint",
        "events",
        "first_event",
        "first_token",
        "too_large",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        max_bytes: int,
        clock: Callable[[], float],
        offsets: bool = False,
        whole_events: bool = False,
    ) -> None:
        super().__init__()  # the limit is 0: until the first token is found, every piece is looked at
        self.endpoint = endpoint
        self.events = 0
        self.first_event = b""
        self.first_token: float | None = None
        self.too_large = False
        self._clock = clock
        self._mark = _TOKENS[endpoint]
        self._max_bytes = max_bytes
        self._offsets: list[float] | None = [] if offsets else None
        self._rest = _END  # the unfinished event, with the empty line before it
        self._last: deque[bytes] = deque(maxlen=_LAST_EVENTS)  # each of one event or more
        self._whole = whole_events and endpoint in _BARE and not offsets
        self._skipping = False  # in an event that is too large: the rest is its last byte

    def settle(self, gathered: int) -> int:
        """Look at the pieces, unless nothing can have ended: then it would only copy."""
        if self._whole and self._count_whole(gathered):
            return 0
        if gathered <= self._max_bytes and b"\n" not in bytes(self.pieces[-1]):
            return gathered
        self._look()
        return 0

    def last_events(self) -> list[bytes]:
        """The last complete events, oldest first."""
        if self._whole and len(self.pieces) > 2 * _ENDING:
            ending = self.pieces[-_ENDING:]
            del self.pieces[-_ENDING:]
            self._count_whole(0)
            self.pieces.extend(ending)
        self._look()
        return [event for kept in self._last for event in kept.split(_END) if event][-_LAST_EVENTS:]

    def _count_whole(self, gathered: int) -> bool:
        """Count the pieces without looking into all of them; False: they must be looked at.

        It may where each piece up to the first token was one event, and where none is as short as a comment is.
        """
        pieces = self.pieces
        if self.first_token is None:
            self._whole = all(piece.count(_END) == 1 and piece.endswith(_END) for piece in pieces)
            return False
        if self._rest != _END or gathered > max(self._max_bytes, _GATHERED) or min(map(len, pieces)) < _SHORTEST:
            return False
        if not (len(pieces) >= _LAST_EVENTS and pieces[0].startswith(b"data: {") and pieces[-1].endswith(_END)):
            return False
        self.events += len(pieces)
        self._last.clear()
        self._last.append(_END + b"".join(pieces[-_LAST_EVENTS:]))
        pieces.clear()
        return True

    def offsets(self, start: float) -> tuple[float, ...]:
        """Seconds from ``start`` to each event with tokens; empty unless asked for."""
        return tuple(at - start for at in self._offsets or ())

    def _look(self) -> None:
        """Count the events that are complete now and keep the last ones."""
        text = b"".join((self._rest, *self.pieces))
        self.pieces.clear()
        if self._skipping:
            end = text.find(_END)
            if end < 0:
                self._rest = text[-1:]
                return
            text = text[end:]
            self._skipping = False
        cut = text.rfind(_END, len(_END))
        if cut > 0:
            self._count(text, cut)
            self._keep_last(text, cut)
            text = text[cut:]
        self._rest = text
        if len(text) > self._max_bytes:
            self._skip_large_event()

    def _count(self, text: bytes, cut: int) -> None:
        """Count the events with tokens that end before ``cut``; each begins with the empty line before it."""
        begin = 0
        if self.first_token is None:
            begin = self._find_first_token(text, cut)
            if begin < 0:
                return
        new = text.count(self._mark, begin, cut)
        if self.endpoint == MESSAGES:
            new -= text.count(_SIGNATURE, begin, cut)
        self.events += new
        if self._offsets is not None:
            self._offsets.extend([self._clock()] * min(new, _MOST_OFFSETS - len(self._offsets)))

    def _find_first_token(self, text: bytes, cut: int) -> int:
        """Where the first event with tokens begins, -1: not yet."""
        begin = 0
        while begin < cut:
            end = text.find(_END, begin + len(_END))
            event = text[begin:end]
            if not self.first_event and event.startswith(_NAMED) and len(event) <= self._max_bytes:
                self.first_event = event
            if self._has_tokens(event):
                self.first_token = self._clock()
                self.limit = _GATHERED if self._offsets is None else 0
                return begin
            begin = end
        return -1

    def _has_tokens(self, event: bytes) -> bool:
        if self._mark not in event:
            return False
        if self.endpoint == MESSAGES:
            return _SIGNATURE not in event
        if self.endpoint == RESPONSES:
            return True
        try:
            chunk = _CHUNK.decode(data_of(event))
        except UNREADABLE:
            return False
        if chunk.usage is not None and chunk.usage.completion_tokens == 0:
            return False
        return any(choice.delta is None or not _is_opening(choice.delta) for choice in chunk.choices)

    def _keep_last(self, text: bytes, cut: int) -> None:
        """Keep the last events before ``cut``, of which there is at least one."""
        begin, found = cut, 0
        while begin > 0 and found < _LAST_EVENTS:
            begin = text.rfind(_END, 0, begin)
            found += 1
        if cut - begin <= self._max_bytes:
            if found == _LAST_EVENTS:
                self._last.clear()
            self._last.append(text[begin:cut])
            return
        for event in text[begin:cut].split(_END):
            if len(event) > self._max_bytes:
                self.too_large = True
            elif event:
                self._last.append(event)

    def _skip_large_event(self) -> None:
        if self.first_token is not None:
            self.events += self._mark in self._rest[:256]
        self._skipping = True
        self.too_large = True
        self._rest = self._rest[-1:]


def _is_opening(delta: _ChunkDelta) -> bool:
    """The chunk that vLLM sends before any token: a role and no text."""
    return delta.role is not None and all(
        part in _NO_TEXT for part in (delta.content, delta.reasoning, delta.tool_calls)
    )
