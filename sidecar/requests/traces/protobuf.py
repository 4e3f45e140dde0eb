"""OTLP's protobuf encoding: spans out of an ExportTraceServiceRequest, one at a time.

The three levels around the spans are walked by hand and only a span is parsed by its message class. Parsing the
whole would stall the event loop for its 4 MiB at once (about 20 ms), and 4 MiB of empty messages, two bytes each,
would become hundreds of megabytes of objects before anything could be counted.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from sidecar.requests.traces.refusal import Malformed, TooLarge
from sidecar.requests.traces.span import SPAN_BYTES, SPAN_NAME, WANTED, Passed, Span, Value

_RESOURCE_SPANS: Final = 1  # field numbers of opentelemetry-proto's trace_service.proto and trace.proto
_SCOPE_SPANS: Final = 2
_SPANS: Final = 2
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_UNREADABLE: Final = (DecodeError, IndexError, ValueError)  # the last: text not UTF-8, where protobuf has no C code
_FIELDS_A_SPAN: Final = 8  # that may be walked for each span allowed; one alone in its resource takes about 6


def spans(body: bytes, limit: int) -> Iterator[Span | Passed]:
    """Every span of an export, in order, and what lies around them.

    Raises:
        Malformed: the bytes are no ExportTraceServiceRequest.
        TooLarge: far more messages around the spans than ``limit`` spans need.
    """
    walk = _Walk(limit * _FIELDS_A_SPAN)
    try:
        for resource in walk.messages(memoryview(body), _RESOURCE_SPANS):
            yield Passed.FIELD
            for scope in walk.messages(resource, _SCOPE_SPANS):
                yield Passed.FIELD
                for span in walk.messages(scope, _SPANS):
                    yield _span(span) if span else Passed.FIELD
    except _UNREADABLE as error:
        raise Malformed("the body is not an ExportTraceServiceRequest") from error


class _Walk:
    """Steps through messages' fields, at most ``budget`` of them in all."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def messages(self, message: memoryview, number: int) -> Iterator[memoryview]:
        """Every field ``number`` of ``message``, which must be length-delimited; an empty view for any other.

        Raises:
            IndexError: the message ends within a field.
            Malformed: a wire type that can't be, or not for this field.
        """
        at, end = 0, len(message)
        while at < end:
            self._budget -= 1
            if self._budget < 0:
                raise TooLarge("too many spans in one export: lower the sender's batch size")
            tag, at = _varint(message, at)
            start, at = _extent(message, at, tag & 7)
            if at > end:
                raise IndexError
            if tag >> 3 != number:
                yield message[:0]
            elif tag & 7 == _LENGTH:
                yield message[start:at]
            else:
                raise Malformed("the body is not an ExportTraceServiceRequest")


def _extent(message: memoryview, at: int, wire_type: int) -> tuple[int, int]:
    """Where a field's value begins and ends."""
    if wire_type == _LENGTH:
        length, at = _varint(message, at)
        return at, at + length
    if wire_type == _VARINT:
        return at, _varint(message, at)[1]
    if wire_type == _FIXED64:
        return at, at + 8
    if wire_type == _FIXED32:
        return at, at + 4
    raise Malformed("the body is not an ExportTraceServiceRequest")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise Malformed("the body is not an ExportTraceServiceRequest")


def _span(data: memoryview) -> Span | Passed:
    if len(data) > SPAN_BYTES:
        return Passed.SPAN
    span = trace_pb2.Span.FromString(bytes(data))
    if span.name != SPAN_NAME:
        return Passed.SPAN
    attributes = {pair.key: _value(pair.value) for pair in span.attributes if pair.key in WANTED}
    return Span(span.trace_id, span.span_id, span.start_time_unix_nano, span.end_time_unix_nano, attributes)


def _value(value: AnyValue) -> Value:
    kind = value.WhichOneof("value")
    if kind == "double_value":
        return value.double_value
    if kind == "int_value":
        return value.int_value
    return value.string_value if kind == "string_value" else None
