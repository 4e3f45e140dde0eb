"""OTLP's two encodings: extracts the spans of an ExportTraceServiceRequest.

In protobuf, the three levels around the spans are walked by hand and only a span is parsed by its message class. If the
whole were parsed, 4 MiB of empty messages, two bytes each, would take 350 MB before anything could be counted.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.requests.traces.refusal import ExportRefused

_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = 1, 2, 2  # field numbers in trace_service.proto and trace.proto
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_FIELDS_A_SPAN: Final = 8  # fields that may be walked per allowed span; a span alone in its resource takes about 6
_SPAN_BYTES: Final = 65_536  # vLLM's spans have about 600; a longer one is another service's and is not parsed
_BYTES_A_COMMA: Final = 12  # real exports have 18 or more; bounds what parsing can build

_NOT_PROTOBUF: Final = "the body is not an ExportTraceServiceRequest"
_TOO_MANY: Final = "too many spans in one export: lower the sender's batch size"
_NOT_JSON: Final = "the body is not an ExportTraceServiceRequest in JSON"


def protobuf_spans(body: bytes, limit: int) -> Iterator[Span]:
    """Every span of an export, in order; an overlong one is empty.

    Raises:
        ExportRefused: malformed, or more spans than ``limit``, or far more messages around them than that many need.
    """
    walk = _Walk(limit * _FIELDS_A_SPAN)
    count = 0
    try:
        for resource in walk.messages(memoryview(body), _RESOURCE_SPANS):
            for scope in walk.messages(resource, _SCOPE_SPANS):
                for span in walk.messages(scope, _SPANS):
                    count += 1
                    if count > limit:
                        raise ExportRefused("too_large", _TOO_MANY)
                    yield Span() if len(span) > _SPAN_BYTES else Span.FromString(bytes(span))
    except (DecodeError, IndexError, ValueError) as error:  # the last: text that is not UTF-8
        raise ExportRefused("malformed", _NOT_PROTOBUF) from error


def json_spans(body: bytes, limit: int) -> Iterator[Span]:
    """Like ``protobuf_spans``. The ids, which OTLP writes in hex, are read as base64: other bytes, but as unique."""
    if body.count(b",") * _BYTES_A_COMMA > len(body) + 1024:
        raise ExportRefused("malformed", _NOT_JSON)
    try:
        export = json_format.Parse(body, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except (json_format.ParseError, RecursionError, ValueError, AttributeError, TypeError) as error:
        raise ExportRefused("malformed", _NOT_JSON) from error
    spans = [span for resource in export.resource_spans for scope in resource.scope_spans for span in scope.spans]
    if len(spans) > limit:
        raise ExportRefused("too_large", _TOO_MANY)
    yield from spans


class _Walk:
    """Steps through messages' fields, at most ``budget`` of them in all."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def messages(self, message: memoryview, number: int) -> Iterator[memoryview]:
        """Every field ``number`` of ``message``, which must be length-delimited.

        Raises:
            IndexError: the message ends within a field.
            ExportRefused: an impossible wire type, or not the one for this field; or the budget is spent.
        """
        at, end = 0, len(message)
        while at < end:
            self._budget -= 1
            if self._budget < 0:
                raise ExportRefused("too_large", _TOO_MANY)
            tag, at = _varint(message, at)
            start, at = _extent(message, at, tag & 7)
            if at > end:
                raise IndexError
            if tag >> 3 == number:
                if tag & 7 != _LENGTH:
                    raise ExportRefused("malformed", _NOT_PROTOBUF)
                yield message[start:at]


def _extent(message: memoryview, at: int, wire_type: int) -> tuple[int, int]:
    """Where a field's value begins and ends."""
    if wire_type == _LENGTH:
        length, at = _varint(message, at)
        return at, at + length
    if wire_type == _VARINT:
        return at, _varint(message, at)[1]
    if wire_type in (_FIXED32, _FIXED64):
        return at, at + (4 if wire_type == _FIXED32 else 8)
    raise ExportRefused("malformed", _NOT_PROTOBUF)


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ExportRefused("malformed", _NOT_PROTOBUF)
