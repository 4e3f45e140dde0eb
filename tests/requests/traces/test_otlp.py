"""Both encodings give the same spans, and no bytes give anything but spans or a refusal."""

import json
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.requests.traces.otlp import json_spans, protobuf_spans
from sidecar.requests.traces.refusal import ExportRefused
from tests.requests.traces.spans import RECORDED, RECORDED_JSON, USUAL, attributes, body, export, made, otlp_json

MANY = 10_000


def truth(request):
    """The spans as the official message classes see them, all at once."""
    return [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]


@contextmanager
def may_be_refused(*reasons):
    try:
        yield
    except ExportRefused as refusal:
        assert refusal.reason in reasons  # noqa: PT017 - it may also pass


@contextmanager
def refused(reason):
    with pytest.raises(ExportRefused) as refusal:
        yield
    assert refusal.value.reason == reason


def spans_of(data, limit=MANY):
    return list(protobuf_spans(data, limit))


def without_ids(spans):
    copies = []
    for span in spans:
        copies.append(Span())
        copies[-1].CopyFrom(span)
        for field in ("trace_id", "span_id", "parent_span_id"):
            copies[-1].ClearField(field)
    return copies


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
        from_json = list(json_spans(encoded(otlp_json(request)), MANY))
        assert without_ids(from_json) == without_ids(truth(request))
        assert len({span.span_id for span in from_json}) == len(from_json)


def test_the_recorded_json_decodes_like_its_protobuf():
    from_json = list(json_spans(RECORDED_JSON.read_bytes(), MANY))
    assert without_ids(from_json) == without_ids(spans_of(RECORDED[0].read_bytes()))


def test_a_huge_span_is_another_services_and_not_parsed():
    [span] = spans_of(body(made(values=USUAL | {"gen_ai.prompt": "x" * 70_000})))
    assert span.name == ""


def test_an_empty_export_has_no_spans():
    assert spans_of(b"") == []
    for text in (b"{}", b'{"resourceSpans":null}', b'{"resourceSpans":[{"scopeSpans":[{"spans":null}]}]}'):
        assert list(json_spans(text, MANY)) == []


def test_more_spans_than_allowed_are_too_large():
    request = export(*map(made, range(1, 7)))
    for decode, data in ((protobuf_spans, request.SerializeToString()), (json_spans, encoded(otlp_json(request)))):
        assert len(list(decode(data, 6))) == 6
        with refused("too_large"):
            list(decode(data, 5))


def test_every_cut_of_an_export_is_refused_or_a_shorter_export():
    """A protobuf message cut between two of its fields is sound; cut anywhere else it must not pass."""
    whole = RECORDED[0].read_bytes() * 2
    half = len(whole) // 2
    sound = []
    for cut in range(1, len(whole)):
        with may_be_refused("malformed"):
            list(protobuf_spans(whole[:cut], MANY))
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
    with refused("malformed"):
        list(protobuf_spans(data, MANY))


def test_fields_of_later_versions_are_ignored():
    later = b"\xf8\x3f\x01" + b"\xfa\x3f\x02ab" + b"\xfd\x3f1234" + b"\xf9\x3f12345678"  # number 1023, all wire types
    inner = body(made())
    assert spans_of(later + inner + later) == spans_of(inner)


@pytest.mark.parametrize("empty", [b"\x0a\x00", b"\x18\x00"])
def test_floods_of_tiny_fields_end_early(empty):
    with refused("too_large"):
        list(protobuf_spans(empty * 2_000_000, 1000))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
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
    with refused("malformed"):
        list(json_spans(text, MANY))


@pytest.mark.parametrize(
    ("value", "expected"), [("7", 7), (7, 7), (7.0, 7), ("seven", None), ("9" * 5000, None), (7.5, None)]
)
def test_numbers_in_json_may_be_strings(value, expected):
    tree = otlp_json(export(made(values={"gen_ai.request.n": 1})))
    span_json(tree)["attributes"][0]["value"] = {"intValue": value}
    if expected is None:
        with refused("malformed"):
            list(json_spans(encoded(tree), MANY))
        return
    [span] = json_spans(encoded(tree), MANY)
    assert span.attributes[0].value.int_value == expected


@given(st.binary(max_size=400))
def test_no_bytes_raise_anything_but_refusals(data):
    for spans in (protobuf_spans(data, 5), json_spans(data, 5)):
        with may_be_refused("malformed", "too_large"):
            assert all(isinstance(span, Span) for span in spans)


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
    tree = otlp_json(export(made(values=attributes())))
    span_json(tree)[field] = value
    with may_be_refused("malformed"):
        [span] = json_spans(encoded(tree), MANY)
        assert isinstance(span, Span)


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=4))
def test_no_damage_to_a_real_export_raises_anything_but_a_refusal(at, damage):
    data = bytearray(RECORDED[0].read_bytes())
    data[at : at + len(damage)] = damage
    with may_be_refused("malformed", "too_large"):
        assert all(isinstance(span, Span) for span in protobuf_spans(bytes(data), MANY))
