"""One request and its reply, seen as bytes pass by, put together into one ``RequestRecord``.

The proxy and the middleware both feed it; what is kept is bounded and ends with the exchange, and nothing of the
text gets into the record. Whoever feeds it sees no exception from the bytes: what can't be read is a fault, by name.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from enum import StrEnum
from typing import Final

from sidecar.requests.middleware.wire import ENDPOINT_NUMBERS, OUTCOME_NUMBERS, Finished, record_of
from sidecar.requests.observe.payload import (
    CHAT,
    COMPLETIONS,
    Endpoint,
    ReplyFields,
    RequestFields,
    read_reply,
    read_request,
)
from sidecar.requests.observe.pieces import Body, Discarded, Gatherer
from sidecar.requests.observe.stream import StreamReader, data_of
from sidecar.requests.record import Outcome, RequestRecord, RequestStart

MAX_BODY_BYTES: Final = 1_048_576
"""Bodies and stream events over this are not decoded. Decoding 1 MiB takes under a millisecond, so no more than that
can hold up the other requests."""


Headers = Collection[tuple[bytes, bytes]]


class Fault(StrEnum):
    """Why a record knows less than it might; each is counted under this name."""

    REQUEST_TOO_LARGE = "request_too_large"
    REQUEST_ENCODED = "request_encoded"  # it has a Content-Encoding
    REQUEST_MALFORMED = "request_malformed"
    REPLY_TOO_LARGE = "reply_too_large"
    REPLY_ENCODED = "reply_encoded"
    REPLY_MALFORMED = "reply_malformed"
    ACCEPTANCE_MALFORMED = "acceptance_malformed"


_UNREAD: Final = RequestFields()
_NO_REPLY: Final = ReplyFields()


class ExchangeObserver:
    """Observes one exchange with a generation endpoint.

    Feed it in the order things happen: ``request_piece``, ``request_end``, ``reply_head``, ``reply_piece``,
    ``reply_end``, and once, whatever happened, ``finish``. Pieces are body bytes without transfer coding, cut
    anywhere. Header names and values are bytes in any case. ``wall`` gives Unix seconds, ``clock`` monotonic ones.

    ``offsets``: keep the time of each event with tokens. ``whole_events``: each piece of a stream should be one event.
    ``reply`` is there after ``reply_head`` and takes the reply's pieces.
    """

    __slots__ = (
        "_body", "_clock", "_ended", "_fields", "_gone", "_max_bytes", "_offsets", "_request", "_request_encoded",
        "_started", "_status", "_stream", "_whole_events", "began", "endpoint", "faults", "reply", "request_id",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        endpoint: Endpoint,
        headers: Headers = (),
        *,
        max_bytes: int = MAX_BODY_BYTES,
        offsets: bool = False,
        whole_events: bool = False,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.began = wall()
        self.faults: list[Fault] = []
        self.reply: Gatherer | None = None
        self._started = clock()
        self._clock = clock
        self._max_bytes = max_bytes
        self._offsets = offsets
        self._whole_events = whole_events
        self._request: Body | None = None
        self._request_encoded = _is_encoded(headers)
        self._fields = _UNREAD
        self._status = 0
        self._body: Body | None = None
        self._stream: StreamReader | None = None
        self._ended = False
        self._gone = False

    @property
    def start(self) -> RequestStart:
        """The request's beginning, to be told at once."""
        return RequestStart(self.request_id, self.began)

    def request_piece(self, piece: bytes) -> None:
        """Take the next bytes of the request's body."""
        if self._request is None:
            self._request = Body(self._max_bytes)
        self._request.feed(piece)

    def request_end(self, piece: bytes = b"") -> None:
        """The request's body is whole with ``piece``: it is decoded now and let go."""
        if self._request is not None:
            self._request.feed(piece)
            too_large, piece = self._request.too_large, self._request.take()
            self._request = None
        else:
            too_large = len(piece) > self._max_bytes
        if self._request_encoded:
            self.faults.append(Fault.REQUEST_ENCODED)
        elif too_large:
            self.faults.append(Fault.REQUEST_TOO_LARGE)
        elif (fields := read_request(self.endpoint, piece)) is None:
            self.faults.append(Fault.REQUEST_MALFORMED)
        else:
            self._fields = fields

    def reply_head(self, status: int, headers: Headers) -> None:
        """The reply has begun."""
        self._status = status
        if status >= 400:
            self.reply = Discarded()  # it says nothing that the status doesn't
            return
        encoding, content_type = b"", b""
        for name, value in headers:
            if len(name) == 16 and name.lower() == b"content-encoding":
                encoding = value
            elif len(name) == 12 and name.lower() == b"content-type":
                content_type = value
        if _is_coded(encoding):
            self.reply = Discarded()
            self.faults.append(Fault.REPLY_ENCODED)
        elif content_type.lower().lstrip().startswith(b"text/event-stream"):
            self.reply = self._stream = StreamReader(
                self.endpoint,
                max_bytes=self._max_bytes,
                clock=self._clock,
                offsets=self._offsets,
                whole_events=self._whole_events,
            )
        else:
            self.reply = self._body = Body(self._max_bytes)

    def reply_piece(self, piece: bytes) -> None:
        """Take the next bytes of the reply's body."""
        if self.reply is not None:
            self.reply.feed(piece)

    def reply_end(self) -> None:
        """The reply is whole."""
        self._ended = not self._gone

    def client_gone(self) -> None:
        """The client has gone away; without effect once the reply is whole."""
        self._gone = not self._ended

    def finish(self, *, failed: bool = False) -> RequestRecord:
        """The exchange is over; ``failed``: it ended in a server error that was seen only by other means."""
        record = record_of(self.request_id, self.finish_as_event(0, failed=failed))
        offsets = () if self._stream is None else self._stream.offsets(self._started)
        return replace(record, event_offsets=offsets) if offsets else record

    def finish_as_event(self, number: int, *, failed: bool = False) -> Finished:
        """As ``finish``, but in the form that is sent, which is quicker to make; without event offsets."""
        stream = self._stream
        reply, events = (self._read_body(), 0) if stream is None else self._read_stream(stream)
        if reply.acceptance_malformed:
            self.faults.append(Fault.ACCEPTANCE_MALFORMED)
        asked = self._fields
        first_token = None if stream is None or stream.first_token is None else stream.first_token - self._started
        return Finished(
            number,
            ENDPOINT_NUMBERS[self.endpoint],
            OUTCOME_NUMBERS[self._outcome(failed=failed or reply.error)],
            self.began,
            first_token,
            self._clock() - self._started,
            reply.model or asked.model,
            _effective(asked.temperature, reply.temperature),
            asked.choices,
            asked.stream or stream is not None,
            asked.max_tokens,
            reply.prompt_tokens,
            reply.completion_tokens,
            events,
            reply.acceptance,
        )

    def _outcome(self, *, failed: bool) -> Outcome:
        if failed or self._status >= 400:
            return Outcome.ERROR
        return Outcome.COMPLETED if self._ended else Outcome.ABORTED

    def _read_body(self) -> ReplyFields:
        if self._body is None or not self._ended:
            return _NO_REPLY
        if self._body.too_large:
            self.faults.append(Fault.REPLY_TOO_LARGE)
            return _NO_REPLY
        fields = read_reply(self._body.take())
        if fields is None:
            self.faults.append(Fault.REPLY_MALFORMED)
        return fields or _NO_REPLY

    def _read_stream(self, stream: StreamReader) -> tuple[ReplyFields, int]:
        """What the stream's first and last events say, as one, and how many events carried tokens."""
        final, without_tokens = self._final(stream)
        if stream.too_large and final.completion_tokens is None:  # else it cost nothing
            self.faults.append(Fault.REPLY_TOO_LARGE)
        if self.endpoint in (CHAT, COMPLETIONS):
            return final, max(stream.events - without_tokens, 0)
        first = read_reply(data_of(stream.first_event)) or _NO_REPLY
        return (
            ReplyFields(
                final.model or first.model,
                first.temperature if final.temperature is None else final.temperature,
                first.prompt_tokens if final.prompt_tokens is None else final.prompt_tokens,
                final.completion_tokens,
                final.acceptance,
                final.acceptance_malformed,
                final.error,
            ),
            stream.events,
        )

    def _final(self, stream: StreamReader) -> tuple[ReplyFields, int]:
        """The last event that says how it ended, and how many of the last ones were without tokens.

        That is the usage or an error. Before it comes or where none does, it is the last chunk: it may count the
        tokens so far, of its own choice alone.
        """
        chunk = _NO_REPLY
        for event in reversed(stream.last_events()):
            data = data_of(event)
            fields = None if data == b"[DONE]" else read_reply(data)
            if fields is None:
                continue
            if fields.empty or fields.error:
                return fields, 1
            if chunk.completion_tokens is None and (fields.completion_tokens is not None or chunk.model is None):
                chunk = fields
        return chunk if self._fields.choices == 1 else ReplyFields(model=chunk.model), 0


def _is_encoded(headers: Headers) -> bool:
    """Whether a body is compressed or otherwise encoded, so that it can't be read as it is."""
    for name, value in headers:  # noqa: SIM110 - it runs for every request, and any() takes twice as long
        if len(name) == 16 and name.lower() == b"content-encoding" and _is_coded(value):
            return True
    return False


def _is_coded(encoding: bytes) -> bool:
    return encoding.strip().lower() not in (b"", b"identity")


def _effective(asked: float | None, echoed: float | None) -> float | None:
    """The request's temperature, or where it gave none the one that vLLM says it took."""
    return echoed if echoed is not None and (asked is None or asked != asked) else asked  # noqa: PLR0124 - NaN
