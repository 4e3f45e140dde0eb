"""What is fuzzed: each target takes any bytes, and raises if a parser breaks a promise.

The first byte of most inputs says where the rest is cut: a parser must find the same however the network splits it.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sidecar.engine.exposition import PageReader
from sidecar.engine.lines import PageLimits
from sidecar.engine.names import wanted
from sidecar.errors import PageError, Refusal, SettingsError
from sidecar.requests.middleware.event_receiver import DROP_REASONS, EventReceiver, _Sender
from sidecar.requests.observe.endpoint import ENDPOINTS
from sidecar.requests.observe.exchange_observer import ExchangeObserver
from sidecar.requests.observe.usage import AskUsage, UsageAsker
from sidecar.requests.proxy.framing import ChunkedDecoder
from sidecar.requests.proxy.head import HeadReader, parse_head
from sidecar.requests.proxy.request import parse_request
from sidecar.requests.proxy.response import parse_response
from sidecar.requests.record import Outcome, RequestRecord
from sidecar.requests.traces.body import gunzipped
from sidecar.requests.traces.otlp import json_spans, protobuf_spans
from sidecar.requests.traces.records import to_record
from sidecar.requests.traces.refusal import ExportRefused, Inconsistent
from sidecar.settings import load_settings
from sidecar.settings.web_config import read_web_config

LIMITS = PageLimits(page_bytes=65_536, line_bytes=1024, labels=8, series=100)
CHAT, *_ = ENDPOINTS.values()
EVENTS = [(b"content-type", b"text/event-stream")]


def pieces(data: bytes) -> Iterator[bytes]:
    """All but the first byte, in pieces of a length that it gives."""
    size = max(data[0], 1) if data else 1
    for at in range(1, len(data), size):
        yield data[at : at + size]


def exposition(data: bytes) -> None:
    """A page reads the same by a reader that remembers another page, and by one that has just read it."""

    def read(reader: PageReader, body: bytes):
        try:
            page = reader.read(body)
        except PageError as error:
            return type(error)
        return page.layout.series, [repr(value) for value in page.values]

    first, _, second = data.partition(b"\xff")
    known = PageReader(wanted(), LIMITS)
    read(known, first)
    fresh = read(PageReader(wanted(), LIMITS), second)
    assert read(known, second) == fresh
    assert read(known, second) == fresh


def payload(data: bytes) -> None:
    """A request and its stream give one record, whole or in pieces, with or without usage asked for."""
    body, _, stream = data[1:].partition(b"\0")
    whole, cut = _observed(body, [stream]), _observed(body, list(pieces(data[:1] + stream)))
    assert msgspec.json.encode(whole) == msgspec.json.encode(cut)
    assert _observed(body, [stream], b"application/json").outcome in set(Outcome)
    asker = UsageAsker(AskUsage.ALWAYS, max_bytes=4096, version="0.32.0")
    sent = []
    for parts in ([stream], list(pieces(data[:1] + stream))):
        asked = asker.ask(CHAT, body)
        if asked is None:
            return
        before, after = (msgspec.json.decode(one, type=dict[str, msgspec.Raw]) for one in (body, asked.body))
        assert before | {"stream_options": after["stream_options"]} == after
        asked.refused(200, EVENTS)
        sent.append(b"".join(asked.forward(part) for part in parts) + asked.rest())
        asker.forget()
    assert sent[0] == sent[1]


def _observed(body: bytes, reply: list[bytes], kind: bytes = EVENTS[0][1]) -> RequestRecord:
    observer = ExchangeObserver("x", CHAT, max_bytes=4096, wall=lambda: 1.0, clock=lambda: 1.0)
    observer.request_end(body)
    observer.reply_head(200, [(b"content-type", kind)])
    for piece in reply:
        observer.reply_piece(piece)
    observer.reply_end()
    return observer.finish()


def heads(data: bytes) -> None:
    """A head is found, or refused, whole or in pieces; what is forwarded of it means what it meant."""
    whole = _head([data[1:]])
    assert whole == _head(list(pieces(data)))
    if whole is None:
        return
    with suppress(Refusal):
        parse_response(whole[0])
    try:
        request = parse_request(whole[0], b"vllm:8000")
    except Refusal:
        return
    again = parse_request(request.forwarded, b"vllm:8000")
    for name in ("method", "target", "length", "chunked", "websocket"):
        assert getattr(again, name) == getattr(request, name), name
    assert again.forwarded == request.forwarded


def _head(parts: list[bytes]) -> tuple[bytes, bytes] | None:
    reader, rest = HeadReader(1024, skip_empty_line=True), iter(parts)
    try:
        for part in rest:
            found = reader.feed(part)
            if found is not None:
                parse_head(found[0], is_request=not found[0].startswith(b"HTTP"))
                return found[0], found[1] + b"".join(rest)
    except Refusal:
        pass
    return None


def chunks(data: bytes) -> None:
    """A chunked body has one payload and one end, whole or in pieces."""
    assert _decoded([data[1:]]) == _decoded(list(pieces(data)))


def _decoded(parts: list[bytes]) -> tuple[bytes, bytes] | None:
    """The payload and what follows it; None if the body is refused or incomplete."""
    decoder, payload, rest = ChunkedDecoder(bounded=True), b"", iter(parts)
    try:
        for part in rest:
            payload += decoder.decode(part)
            if decoder.done:
                return payload, decoder.rest + b"".join(rest)
    except Refusal:
        pass
    return None


class Sink:
    """Takes what a receiver delivers, and checks it."""

    def started(self, request):
        assert len(request.id) <= 300

    def finished(self, record):
        assert record.end >= record.start
        assert record.completion_tokens is None or 0 <= record.completion_tokens < 2**53

    def dropped(self, reason, count):
        assert reason in DROP_REASONS
        assert 0 <= count <= 100_000


def packets(data: bytes) -> None:
    """Whatever a sender writes, the receiver delivers what is possible and counts the rest."""
    receiver, sender = EventReceiver("/nowhere", Sink()), _Sender(1)
    receiver._buffer[: len(data)] = data[:65_536]
    receiver._take(sender, min(len(data), 65_536))


def otlp(data: bytes) -> None:
    """Spans walked by hand are those of protobuf's own parser; anything else is refused."""
    kind, body = data[:1], data[1:65_536]
    if kind == b"z":
        with suppress(ExportRefused):
            body = gunzipped(body, 65_536)
    try:
        spans = list((json_spans if kind == b"{" else protobuf_spans)(kind + body if kind == b"{" else body, 100))
    except ExportRefused:
        return
    if kind != b"{":
        with suppress(DecodeError):
            export = ExportTraceServiceRequest.FromString(body)
            parsed = [span for one in export.resource_spans for scope in one.scope_spans for span in scope.spans]
            assert [span.SerializeToString() for span in spans] == [span.SerializeToString() for span in parsed]
    for span in spans:
        with suppress(Inconsistent):
            record = to_record(span, 2e9)
            assert record is None or record.end >= record.start


def settings(data: bytes) -> None:
    """A settings file, and a web configuration, are valid or refused with lines that can be printed."""
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(data)
        file.flush()
        lines = ["valid"]
        try:
            load_settings(Path(file.name), {})
        except SettingsError as error:
            lines = error.messages
        assert lines
        assert all(line.isprintable() for line in lines)
        with suppress(ValueError):
            read_web_config(Path(file.name))


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (exposition, payload, heads, chunks, packets, otlp, settings)
}
