"""OTLP's JSON encoding: proto3's JSON mapping, but with ids in hex and enums as numbers.

64-bit integers come as strings or numbers, and fields that are not known are passed over, as OTLP asks.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Final

import msgspec

from sidecar.requests.traces.refusal import Malformed
from sidecar.requests.traces.span import SPAN_BYTES, SPAN_NAME, WANTED, Passed, Span, Value

_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
_DENSEST: Final = 12
"""Bytes a comma at least: real exports have 18 and more. Bounds what one decode can build and how long it takes."""
_LONGEST_NUMBER: Final = 32
_NS: Final = 2**64


class _Scope(msgspec.Struct, rename="camel"):
    spans: list[msgspec.Raw] | None = None


class _Resource(msgspec.Struct, rename="camel"):
    scope_spans: list[_Scope] | None = None


class _Export(msgspec.Struct, rename="camel"):
    resource_spans: list[_Resource] | None = None


class _Named(msgspec.Struct):
    name: str | None = None


class _AnyValue(msgspec.Struct, rename="camel"):
    int_value: int | float | str | None = None
    double_value: int | float | str | None = None
    string_value: str | None = None


class _Attribute(msgspec.Struct):
    key: str | None = None
    value: msgspec.Raw = msgspec.Raw(b"null")


class _Span(msgspec.Struct, rename="camel"):
    trace_id: str | None = None
    span_id: str | None = None
    start_time_unix_nano: int | str | None = None
    end_time_unix_nano: int | str | None = None
    attributes: list[_Attribute] | None = None


_EXPORT: Final = msgspec.json.Decoder(_Export)
_NAMED: Final = msgspec.json.Decoder(_Named)
_SPAN: Final = msgspec.json.Decoder(_Span)
_ANY_VALUE: Final = msgspec.json.Decoder(_AnyValue | None)


def spans(body: bytes) -> Iterator[Span | Passed]:
    """Every span of an export, in order.

    Raises:
        Malformed: the bytes are no ExportTraceServiceRequest in JSON.
    """
    if body.count(b",") * _DENSEST > len(body) + 1024:
        raise Malformed("the body is not an ExportTraceServiceRequest in JSON")
    try:
        for resource in _EXPORT.decode(body).resource_spans or ():
            for scope in resource.scope_spans or ():
                for raw in scope.spans or ():
                    yield _span(raw)
    except _UNREADABLE as error:
        raise Malformed("the body is not an ExportTraceServiceRequest in JSON") from error


def _span(raw: msgspec.Raw) -> Span | Passed:
    if len(raw) > SPAN_BYTES or _NAMED.decode(raw).name != SPAN_NAME:
        return Passed.SPAN
    span = _SPAN.decode(raw)
    attributes = {pair.key: _value(pair.value) for pair in span.attributes or () if pair.key in WANTED and pair.key}
    return Span(
        _id(span.trace_id, 16),
        _id(span.span_id, 8),
        _ns(span.start_time_unix_nano),
        _ns(span.end_time_unix_nano),
        attributes,
    )


def _id(text: str | None, size: int) -> bytes:
    """An id's bytes: hex, or base64 as plain proto3 JSON libraries write it; empty: neither, or not ``size`` long."""
    try:
        if text is not None and len(text) == 2 * size:
            return bytes.fromhex(text)
        decoded = base64.b64decode(text or "", validate=True)
    except (ValueError, binascii.Error):
        return b""
    return decoded if len(decoded) == size else b""


def _ns(value: int | str | None) -> int:
    """Nanoseconds; 0, proto3's default, where none are given."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= _LONGEST_NUMBER else -1
    if value is not None and not 0 <= value < _NS:
        raise Malformed("the body is not an ExportTraceServiceRequest in JSON")
    return value or 0


def _value(raw: msgspec.Raw) -> Value:
    try:
        value: _AnyValue | None = _ANY_VALUE.decode(raw)
        if value is None:
            return None
        if value.double_value is not None:
            return float(value.double_value)
        if value.int_value is not None:
            return _whole(value.int_value)
    except (*_UNREADABLE, OverflowError):
        return None
    return value.string_value


def _whole(value: float | str) -> int | None:
    if isinstance(value, str):
        return int(value) if len(value) <= _LONGEST_NUMBER else None
    return int(value) if value == int(value) else None
