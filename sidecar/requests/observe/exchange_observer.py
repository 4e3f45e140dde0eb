"""Turns one request and its reply, observed as their bytes pass, into one ``RequestRecord``.

The proxy and the middleware both use it. What it keeps is bounded and freed with the exchange, and no text enters
the record. No input makes it raise: what cannot be read is noted as a ``Fault``.
"""

import time
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Final

from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, Endpoint
from sidecar.requests.observe.payload import ReplyFields, RequestFields, read_reply, read_request
from sidecar.requests.observe.stream import StreamReader
from sidecar.requests.record import AskedUsage, Outcome, RequestRecord, RequestStart

MAX_BODY_BYTES: Final = 1_048_576
"""Larger bodies and stream events are not decoded: decoding 1 MiB delays the other requests by under 1 ms."""

Headers = Collection[tuple[bytes, bytes]]


class Fault(StrEnum):
    """Why a record is incomplete; each is counted under this name."""

    REQUEST_TOO_LARGE = "request_too_large"
    REQUEST_ENCODED = "request_encoded"  # it has a Content-Encoding
    REQUEST_MALFORMED = "request_malformed"
    REPLY_TOO_LARGE = "reply_too_large"
    REPLY_ENCODED = "reply_encoded"
    REPLY_MALFORMED = "reply_malformed"
    ACCEPTANCE_MALFORMED = "acceptance_malformed"


_NO_REPLY: Final = ReplyFields()


class Body:
    """Collects a body that is read once it is complete; one of more than ``max_bytes`` is discarded."""

    __slots__ = ("_max_bytes", "content", "too_large")

    def __init__(self, max_bytes: int) -> None:
        self.content = bytearray()
        self.too_large = False
        self._max_bytes = max_bytes

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""
        if self.too_large:
            return
        self.content += piece
        if len(self.content) > self._max_bytes:
            self.too_large = True
            self.content = bytearray()


class ExchangeObserver:
    """Observes one exchange with a generation endpoint.

    Call its methods in the order of events: ``request_piece``, ``request_end``, ``reply_head``, ``reply_piece``,
    ``reply_end``, and once, whatever happened, ``finish``. Pieces are body bytes without transfer coding, cut anywhere.
    Header names and values are bytes, in upper or lower case. ``wall`` gives Unix seconds, ``clock`` monotonic ones.
    ``offsets``: keep the time of each event with tokens. ``body`` creates the collector of a body of at most that many
    bytes.
    """

    def __init__(
        self,
        request_id: str,
        endpoint: Endpoint,
        headers: Headers = (),
        *,
        max_bytes: int = MAX_BODY_BYTES,
        offsets: bool = False,
        body: Callable[[int], Body] = Body,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.start = RequestStart(request_id, wall())
        self.faults: list[Fault] = []
        self._started = clock()
        self._clock = clock
        self._max_bytes = max_bytes
        self._offsets = offsets
        self._make_body = body
        self._request = body(max_bytes)
        self._request_encoded = _is_encoded(headers)
        self._fields = RequestFields()
        self._status = 0
        self._reply: Body | StreamReader | None = None  # None before the reply's head, or if the body is not read
        self._ended = False
        self._gone = False

    def request_piece(self, piece: bytes) -> None:
        """Take the next bytes of the request's body."""
        self._request.feed(piece)

    def request_end(self, piece: bytes = b"") -> None:
        """``piece`` completes the request's body: it is decoded now and freed."""
        request, self._request = self._request, Body(0)
        request.feed(piece)
        if self._request_encoded:
            self.faults.append(Fault.REQUEST_ENCODED)
        elif request.too_large:
            self.faults.append(Fault.REQUEST_TOO_LARGE)
        elif (fields := read_request(self.endpoint, request.content)) is None:
            self.faults.append(Fault.REQUEST_MALFORMED)
        else:
            self._fields = fields

    def reply_head(self, status: int, headers: Headers) -> None:
        """The reply has begun."""
        self._status = status
        if status >= 400:
            return  # the status says it all
        if _is_encoded(headers):
            self.faults.append(Fault.REPLY_ENCODED)
        elif _header(headers, b"content-type").startswith(b"text/event-stream"):
            self._reply = StreamReader(
                self.endpoint, max_bytes=self._max_bytes, clock=self._clock, keep_offsets=self._offsets
            )
        else:
            self._reply = self._make_body(self._max_bytes)

    def reply_piece(self, piece: bytes) -> None:
        """Take the next bytes of the reply's body."""
        if self._reply is not None:
            self._reply.feed(piece)

    def reply_end(self) -> None:
        """The reply is complete."""
        self._ended = not self._gone

    def client_gone(self) -> None:
        """The client has disconnected; without effect once the reply is complete."""
        self._gone = not self._ended

    def finish(self, *, failed: bool = False, asked_usage: AskedUsage | None = None) -> RequestRecord:
        """The record; ``failed``: the exchange ended in a server error that the reply does not show.

        ``asked_usage``: the outcome of asking vLLM for usage on the client's behalf.
        """
        stream = self._reply if isinstance(self._reply, StreamReader) else None
        reply, stream_events = (self._read_body(), 0) if stream is None else self._read_stream(stream)
        if reply.acceptance_malformed:
            self.faults.append(Fault.ACCEPTANCE_MALFORMED)
        asked, start = self._fields, self.start.start
        return RequestRecord(
            id=self.start.id,
            path=self.endpoint,
            model=reply.model or asked.model,
            temperature=_effective(asked.temperature, reply.temperature),
            choices=asked.choices,
            stream=asked.stream or stream is not None,
            start=start,
            first_token=None
            if stream is None or stream.first_token is None
            else start + self._since(stream.first_token),
            end=start + self._since(self._clock()),
            outcome=self._outcome(failed=failed or reply.error),
            max_tokens=asked.max_tokens,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            stream_events=stream_events,
            acceptance=reply.acceptance,
            parameters=asked.parameters,
            asked_usage=asked_usage,
            event_offsets=() if stream is None else tuple(map(self._since, stream.offsets)),
        )

    def _since(self, at: float) -> float:
        return at - self._started

    def _outcome(self, *, failed: bool) -> Outcome:
        if failed or self._status >= 400:
            return Outcome.ERROR
        # Clients, OpenAI's among them, close when they have read a stream's last event, so the end of the body
        # arrives after the client has left. This is not an abort: vLLM has generated everything that was requested.
        whole = self._ended or (isinstance(self._reply, StreamReader) and self._reply.has_ended())
        return Outcome.COMPLETED if whole else Outcome.ABORTED

    def _read_body(self) -> ReplyFields:
        if not isinstance(self._reply, Body) or not self._ended:
            return _NO_REPLY
        if self._reply.too_large:
            self.faults.append(Fault.REPLY_TOO_LARGE)
            return _NO_REPLY
        fields = read_reply(self._reply.content)
        if fields is None:
            self.faults.append(Fault.REPLY_MALFORMED)
        return fields or _NO_REPLY

    def _read_stream(self, stream: StreamReader) -> tuple[ReplyFields, int]:
        """What the stream says as a whole, and the number of its events with tokens."""
        fields = self._final_fields(stream)
        if stream.too_large and fields.completion_tokens is None:  # else nothing was lost
            self.faults.append(Fault.REPLY_TOO_LARGE)
        if self.endpoint not in (CHAT, COMPLETIONS):
            return fields, 0  # a step whose text is empty has no event, so the events are no step count
        # The usage and the error were counted, since they look like the chunks with tokens before them.
        return fields, max(stream.events - (fields.is_usage or fields.error), 0)

    def _final_fields(self, stream: StreamReader) -> ReplyFields:
        """The numbers in the usage or the error at the end.

        If the stream has neither, its last chunk may count the tokens so far, but only those of its own choice.
        """
        chunk: ReplyFields | None = None
        for fields in stream.last():
            if fields.is_usage or fields.error:
                return fields
            if chunk is None or (chunk.completion_tokens is None and fields.completion_tokens is not None):
                chunk = fields
        if chunk is None:
            return _NO_REPLY
        return chunk if self._fields.choices == 1 else ReplyFields(model=chunk.model)


def _header(headers: Headers, name: bytes) -> bytes:
    """The value of a header in lower case, empty if it is missing."""
    for key, value in headers:
        if key.lower() == name:
            return value.strip().lower()
    return b""


def _is_encoded(headers: Headers) -> bool:
    """Whether a body is compressed or otherwise encoded, and cannot be read directly."""
    return _header(headers, b"content-encoding") not in (b"", b"identity")


def _effective(asked: float | None, echoed: float | None) -> float | None:
    """The request's temperature; if it is unknown, the one that vLLM says it used."""
    is_known = asked is not None and asked == asked  # noqa: PLR0124 - NaN
    return asked if is_known or echoed is None else echoed
