"""Both encodings give the same spans, and no bytes give anything but spans or a refusal."""

import base64
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sidecar.requests.traces import otlp_json, protobuf
from sidecar.requests.traces.refusal import Malformed, TooLarge
from sidecar.requests.traces.span import WANTED, Passed, Span
from tests.requests.traces.traces_tools import RECORDED, RECORDED_JSON, USUAL, attributes, body, export, made
from tests.requests.traces.traces_tools import otlp_json as as_json

MANY = 10_000


def truth(request):
    """The spans as the official message classes see them, all at once."""
    return [
        Span(
            span.trace_id,
            span.span_id,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes if a.key in WANTED},
        )
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def spans_of(data, limit=MANY):
    return [span for span in protobuf.spans(data, limit) if span is not Passed.FIELD]


def span_json(tree):
    return tree["resourceSpans"][0]["scopeSpans"][0]["spans"][0]


def encoded(tree):
    return json.dumps(tree).encode()


def test_every_recorded_export_decodes_as_the_official_classes_decode_it():
    assert len(RECORDED) == 6
    for path in RECORDED:
        request = ExportTraceServiceRequest.FromString(path.read_bytes())
        assert truth(request)
        assert spans_of(path.read_bytes()) == truth(request)
        assert list(otlp_json.spans(encoded(as_json(request)))) == truth(request)


def test_the_recorded_json_has_plain_proto3_ids_and_decodes_like_its_protobuf():
    from_json = list(otlp_json.spans(RECORDED_JSON.read_bytes()))
    assert from_json == spans_of(RECORDED[0].read_bytes())
    assert [span.span_id.hex() for span in from_json] == ["568024018acf2a3e", "ee95f9cc3be2c3b8"]


def test_only_wanted_attributes_are_kept():
    values = USUAL | {"gen_ai.prompt": "a secret", "gen_ai.request.id": "also one"}
    [span] = spans_of(body(made(values=values)))
    [same] = otlp_json.spans(encoded(as_json(export(made(values=values)))))
    assert span == same
    assert set(span.attributes) <= WANTED
    assert "secret" not in repr(span)
    assert "also one" not in repr(span)


def test_other_spans_are_counted_and_not_read():
    request = export(made(1, name="POST /v1/completions"), made(2), made(3, name=""))
    for spans in (spans_of(request.SerializeToString()), otlp_json.spans(encoded(as_json(request)))):
        assert [span if isinstance(span, Passed) else span.span_id[-1] for span in spans] == [
            Passed.SPAN,
            2,
            Passed.SPAN,
        ]


def test_a_huge_span_is_another_services_whatever_its_name():
    request = export(made(values=USUAL | {"gen_ai.prompt": "x" * 70_000}))
    assert spans_of(request.SerializeToString()) == [Passed.SPAN]
    assert list(otlp_json.spans(encoded(as_json(request)))) == [Passed.SPAN]


def test_an_empty_export_has_no_spans():
    assert spans_of(b"") == []
    for text in (b"{}", b'{"resourceSpans":null}', b'{"resourceSpans":[{"scopeSpans":[{"spans":null}]}]}'):
        assert list(otlp_json.spans(text)) == []


def test_every_cut_of_an_export_is_refused_or_a_shorter_export():
    """A protobuf message cut between two of its fields is sound; cut anywhere else it must not pass."""
    whole = RECORDED[0].read_bytes() * 2
    half = len(whole) // 2
    sound = []
    for cut in range(1, len(whole)):
        try:
            list(protobuf.spans(whole[:cut], MANY))
        except Malformed:
            continue
        sound.append(cut)
    assert sound == [half]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x08\x01", id="a number where messages belong"),
        pytest.param(b"\x0b\x0c", id="a group"),
        pytest.param(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="a length that never ends"),
        pytest.param(b"\x0a\x05\x12\x03\x12\x09\x00", id="a span longer than its scope"),
        pytest.param(b"\x0a\x06\x12\x04\x12\x02\x2a\xff", id="a name longer than its span"),
        pytest.param(b"\x0a\x07\x12\x05\x12\x03\x2a\x01\xff", id="a name that is not UTF-8"),
        pytest.param(b"\x15\x00", id="four bytes of which there is one"),
    ],
)
def test_broken_protobuf_is_malformed(data):
    with pytest.raises(Malformed):
        list(protobuf.spans(data, MANY))


def test_fields_of_later_versions_are_passed_over():
    later = b"\xf8\x3f\x01" + b"\xfa\x3f\x02ab" + b"\xfd\x3f1234" + b"\xf9\x3f12345678"  # number 1023, all wire types
    inner = body(made())
    assert spans_of(later + inner + later) == spans_of(inner)


@pytest.mark.parametrize("empty", [b"\x0a\x00", b"\x18\x00"])
def test_floods_of_tiny_fields_end_early(empty):
    with pytest.raises(TooLarge):
        list(protobuf.spans(empty * 2_000_000, 1000))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"resourceSpans":3}',
        b'{"resourceSpans":[3]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[7]}]}]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":["llm_request"]}]}]}]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"llm_request","startTimeUnixNano":"soon"}]}]}]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"llm_request","startTimeUnixNano":-1}]}]}]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"llm_request","endTimeUnixNano":99999999999999999999}]}]}]}',
        b'{"x":' + b"[" * 100_000,
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b"1," * 100_000 + b"1]}]}]}",
    ],
)
def test_broken_json_is_malformed(text):
    with pytest.raises(Malformed):
        list(otlp_json.spans(text))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"intValue": "7"}, 7),
        ({"intValue": 7}, 7),
        ({"intValue": 7.0}, 7),
        ({"intValue": 7.5}, None),
        ({"intValue": "seven"}, None),
        ({"intValue": "9" * 5000}, None),
        ({"intValue": 1e400}, None),
        ({"doubleValue": "0.5"}, 0.5),
        ({"doubleValue": 1}, 1.0),
        ({"doubleValue": {}}, None),
        ({"stringValue": "0.7"}, "0.7"),
        ({"boolValue": True}, None),
        ({"arrayValue": {"values": [{"intValue": "1"}]}}, None),
        ({"kvlistValue": {}}, None),
        ({}, None),
        (None, None),
        (3, None),
        ("3", None),
    ],
)
def test_json_values_of_any_type_are_read_or_left(value, expected):
    tree = as_json(export(made(values={"gen_ai.request.n": 1})))
    span_json(tree)["attributes"][0]["value"] = value
    text = encoded(tree).replace(b"Infinity", b"1e400")
    [span] = otlp_json.spans(text)
    assert span.attributes == {"gen_ai.request.n": expected}


@pytest.mark.parametrize("kind", ["bool_value", "array_value", "kvlist_value", "bytes_value", None])
def test_protobuf_values_of_any_type_are_read_or_left(kind):
    span = made(values={})
    value = span.attributes.add(key="gen_ai.request.temperature").value
    if kind in ("array_value", "kvlist_value"):
        getattr(value, kind).SetInParent()
    elif kind:
        setattr(value, kind, {"bool_value": True, "bytes_value": b"1"}[kind])
    [decoded] = spans_of(body(span))
    assert decoded.attributes == {"gen_ai.request.temperature": None}


@pytest.mark.parametrize("bad", [None, "", "xyz", "0" * 31, "zz" * 16, base64.b64encode(b"short").decode(), "é" * 32])
def test_unusable_ids_in_json_are_empty(bad):
    tree = as_json(export(made()))
    span_json(tree)["traceId"] = bad
    [span] = otlp_json.spans(encoded(tree))
    assert span.trace_id == b""


@given(st.binary(max_size=400))
def test_no_bytes_raise_anything_but_refusals(data):
    for spans in (protobuf.spans(data, 5), otlp_json.spans(data)):
        with suppress(Malformed, TooLarge):
            assert all(isinstance(span, Span | Passed) for span in spans)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["key", "value", "intValue", "doubleValue", "stringValue", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(
    st.sampled_from(["traceId", "spanId", "name", "startTimeUnixNano", "endTimeUnixNano", "attributes", "kind"]),
    JSON_VALUES,
)
def test_no_json_in_a_spans_fields_raises_anything_but_a_refusal(field, value):
    tree = as_json(export(made(values=attributes())))
    span_json(tree)[field] = value
    try:
        [span] = otlp_json.spans(encoded(tree))
    except Malformed:
        return
    assert isinstance(span, Span | Passed)


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=4))
def test_no_damage_to_a_real_export_raises_anything_but_a_refusal(at, damage):
    data = bytearray(RECORDED[0].read_bytes())
    data[at : at + len(damage)] = damage
    with suppress(Malformed, TooLarge):
        assert all(isinstance(span, Span | Passed) for span in protobuf.spans(bytes(data), MANY))
