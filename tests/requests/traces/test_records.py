"""From a span to its request."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.requests.record import Outcome, RequestRecord
from sidecar.requests.traces.otlp import protobuf_spans
from sidecar.requests.traces.records import to_record
from sidecar.requests.traces.refusal import Inconsistent
from tests.requests.traces.spans import RECORDED, START, USUAL, attributes, made


def record(*, latest_end=START + 60, **changes):
    values = changes.pop("values", None)
    return to_record(made(values=attributes() if values is None else values, **changes), latest_end)


def test_a_usual_span_becomes_a_record():
    assert record() == RequestRecord(
        id="00000000000000000000000000000001-0000000000000001",
        path="",
        model=None,
        temperature=0.7,
        choices=1,
        stream=False,
        start=START,
        first_token=START + 0.25,
        end=START + 1.5,
        outcome=Outcome.COMPLETED,
        max_tokens=95,
        prompt_tokens=142,
        completion_tokens=95,
    )


def test_every_recorded_span_is_a_request_with_its_temperature():
    spans = [span for path in RECORDED for span in protobuf_spans(path.read_bytes(), 100)]
    records = [to_record(span, math.inf) for span in spans]
    temperatures = [r.temperature for r in records]
    assert {t: temperatures.count(t) for t in set(temperatures)} == {0.0: 19, 0.7: 9, 1.0: 15}
    assert all(r.completion_tokens == r.max_tokens for r in records)  # they ran with ignore_eos
    assert all(r.start < r.first_token < r.end for r in records)
    assert len({r.id for r in records}) == 43


def test_a_missing_temperature_is_greedy():
    assert record(values=attributes(temperature=None)).temperature == 0.0


def test_a_temperature_that_is_sent_as_0_is_greedy_too():
    assert record(values=attributes(temperature=0.0)).temperature == 0.0  # V0 engines send it
    assert record(values=attributes(temperature=0)).temperature == 0.0


def test_a_whole_temperature_may_come_as_an_integer():
    assert record(values=attributes(temperature=1)).temperature == 1.0


@pytest.mark.parametrize("unreadable", ["0.7", True, -0.5, math.nan, math.inf])
def test_a_temperature_that_cant_be_read_is_unknown_and_not_greedy(unreadable):
    assert math.isnan(record(values=attributes(temperature=unreadable)).temperature)


def test_without_any_sampling_parameter_the_temperature_is_unknown():
    """Something on the way removed them, so a missing temperature says nothing."""
    stripped = attributes(temperature=None, n=None, top_p=None, max_tokens=None)
    assert math.isnan(record(values=stripped).temperature)


def test_an_embedding_is_no_generation():
    stripped = attributes(temperature=None, n=None, top_p=None, max_tokens=None, completion_tokens=0)
    assert record(values=stripped) is None


def test_a_request_without_tokens_has_no_first_token():
    empty = record(values=attributes(completion_tokens=0, time_to_first_token=0.0))
    assert (empty.completion_tokens, empty.first_token) == (0, None)
    assert record(values=attributes(completion_tokens=0)).first_token is None


def test_without_vllms_latencies_the_span_itself_gives_the_end():
    bare = record(end=START + 2, values=attributes(e2e=None, time_to_first_token=None))
    assert (bare.start, bare.first_token, bare.end) == (START, None, START + 2)


def test_vllms_own_duration_goes_before_the_spans():
    """The span ends only when it is written, which a busy event loop delays."""
    assert record(end=START + 9).end == START + 1.5


def test_a_v0_engines_span_has_model_and_n():
    values = attributes(n=2) | {"gen_ai.response.model": "meta/llama", "gen_ai.usage.num_sequences": 2}
    assert (record(values=values).model, record(values=values).choices) == ("meta/llama", 2)


def test_other_names_of_the_counts_and_the_model_are_known():
    values = attributes(prompt_tokens=None, completion_tokens=None) | {
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.request.model": "lab",
    }
    named = record(values=values)
    assert (named.prompt_tokens, named.completion_tokens, named.model) == (3, 4, "lab")


def test_a_model_name_beyond_any_real_one_is_left_out():
    assert record(values=USUAL | {"gen_ai.response.model": "m" * 257}).model is None
    assert record(values=USUAL | {"gen_ai.response.model": 7}).model is None


def test_counts_of_other_types_are_left_out():
    odd = record(values=attributes(prompt_tokens="142", max_tokens=True, completion_tokens=9.5))
    assert (odd.prompt_tokens, odd.max_tokens, odd.completion_tokens) == (None, None, None)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"end": START - 1}, id="ends before it starts"),
        pytest.param({"start": 0, "end": 1}, id="starts in 1970"),
        pytest.param({"end": START + 100_000}, id="longer than a day"),
        pytest.param({"latest_end": START}, id="from the future"),
        pytest.param({"number": 0}, id="an id of zeros"),
        pytest.param({"values": attributes(e2e=-1.0)}, id="a negative duration"),
        pytest.param({"values": attributes(e2e=1.6)}, id="longer than its span"),
        pytest.param({"values": attributes(time_to_first_token=1.6)}, id="first token after the end"),
        pytest.param({"values": attributes(time_to_first_token=-0.1)}, id="first token before the start"),
        pytest.param({"values": attributes(completion_tokens=-1)}, id="negative completion tokens"),
        pytest.param({"values": attributes(prompt_tokens=-1)}, id="negative prompt tokens"),
        pytest.param({"values": attributes(max_tokens=2**40)}, id="tokens beyond bounds"),
        pytest.param({"values": attributes(n=0)}, id="no choices"),
        pytest.param({"values": attributes(n=100_000)}, id="too many choices"),
    ],
)
def test_impossible_spans_are_refused(changes):
    with pytest.raises(Inconsistent):
        record(**changes)


@pytest.mark.parametrize("name", ["GET /health", "", "llm_request "])
def test_spans_of_other_kinds_are_no_requests(name):
    assert record(name=name) is None


@pytest.mark.parametrize("kind", ["bool_value", "array_value", "kvlist_value", "bytes_value", None])
def test_values_of_any_type_are_read_or_ignored(kind):
    span = made(values=attributes(temperature=None))
    value = span.attributes.add(key="gen_ai.request.temperature").value
    if kind in ("array_value", "kvlist_value"):
        getattr(value, kind).SetInParent()
    elif kind:
        setattr(value, kind, {"bool_value": True, "bytes_value": b"1"}[kind])
    assert math.isnan(to_record(span, math.inf).temperature)


def test_nothing_else_of_a_span_is_in_its_record():
    values = USUAL | {"gen_ai.prompt": "a secret", "gen_ai.request.id": "also one"}
    text = repr(record(values=values))
    assert "secret" not in text
    assert "also one" not in text


VALUES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=5)


@given(
    st.just(b"1" * 16) | st.binary(max_size=17),
    st.just(b"1" * 8) | st.binary(max_size=9),
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    st.dictionaries(st.sampled_from(sorted([*USUAL, "gen_ai.request.model", "gen_ai.usage.input_tokens"])), VALUES),
)
def test_any_span_gives_a_valid_record_or_is_refused(trace_id, span_id, times, values):
    span = made(values=values)
    span.trace_id, span.span_id = trace_id, span_id
    span.start_time_unix_nano, span.end_time_unix_nano = times
    try:
        made_of_it = to_record(span, 2e10)
    except Inconsistent:
        return
    if made_of_it is None:
        return
    assert 0 < made_of_it.start <= made_of_it.end <= 2e10
    assert made_of_it.first_token is None or made_of_it.start <= made_of_it.first_token <= made_of_it.end
    assert math.isnan(made_of_it.temperature) or 0 <= made_of_it.temperature < math.inf
    assert made_of_it.completion_tokens is None or made_of_it.completion_tokens >= 0
    assert made_of_it.choices >= 1
