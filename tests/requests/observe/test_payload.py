"""Decoding of requests and replies: right numbers from what vLLM sends, none from what it would not send."""

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, ENDPOINTS, MESSAGES, RESPONSES
from sidecar.requests.observe.payload import read_reply, read_request
from sidecar.requests.record import RequestAcceptance


def request(endpoint=CHAT, **fields):
    return read_request(endpoint, json.dumps(fields).encode())


def raw(text, endpoint=CHAT):
    return read_request(endpoint, text.encode())


@pytest.mark.parametrize(
    ("given_as", "temperature"),
    [
        ("0", 0.0),
        ("0.0", 0.0),
        ("0.7", 0.7),
        ("2", 2.0),
        ("7e-1", 0.7),
        ('"0.7"', 0.7),  # vLLM's pydantic takes numbers in strings
        ("null", None),
    ],
)
def test_a_temperature_is_read_as_vllm_reads_it(given_as, temperature):
    assert raw(f'{{"model":"m","temperature":{given_as}}}').temperature == temperature


@pytest.mark.parametrize(
    "given_as",
    ["1e999", "-1e999", "-0.1", '"hot"', '"nan"', '"inf"', "[]", "{}", "[0.7]", "1" * 500, '""', '"-1"', "true"],
)
def test_a_temperature_that_vllm_refuses_is_unknown_and_the_model_is_known_all_the_same(given_as):
    fields = raw(f'{{"model":"m","temperature":{given_as}}}')
    assert math.isnan(fields.temperature)
    assert fields.model == "m"


def test_a_temperature_that_is_not_given_is_none():
    assert request(model="m").temperature is None


def test_a_name_too_long_for_a_model_is_refused():
    assert request(model="m" * 256).model == "m" * 256
    assert request(model="m" * 257) is None
    assert reply(model="m" * 257) is None


def test_the_last_of_two_temperatures_counts_as_in_vllm():
    assert raw('{"temperature":0.1,"temperature":0.9}').temperature == 0.9


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hello", 1),
        (["hello"], 1),
        (["a", "b", "c"], 3),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        ([[1, 2], [3], [4]], 3),
        ("[[not, a, list]]", 1),
        (["[", "["], 2),
    ],
)
def test_choices_are_n_for_each_prompt(prompt, prompts):
    assert request(COMPLETIONS, prompt=prompt).choices == prompts
    assert request(COMPLETIONS, prompt=prompt, n=3).choices == 3 * prompts


def test_a_list_of_prompts_may_be_spread_over_lines():
    assert raw('{"prompt" : [\n  "a",\n "b" ]}', COMPLETIONS).choices == 2


def test_embedded_prompts_count_too():
    assert request(COMPLETIONS, prompt_embeds=["a", "b"]).choices == 2
    assert request(COMPLETIONS, prompt_embeds="a", prompt=["x"]).choices == 2


@pytest.mark.parametrize(
    ("n", "choices"), [(None, 1), (2, 2), (2.0, 2), ("2", 2), (0, 1), (-3, 1), (10**30, 1), ([], 1)]
)
def test_a_number_of_choices_that_vllm_refuses_counts_as_one(n, choices):
    assert request(n=n).choices == choices


def test_max_tokens_goes_by_each_endpoints_names():
    assert request(max_tokens=5).max_tokens == 5
    assert request(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert request(max_tokens=5, max_completion_tokens=None).max_tokens == 5
    assert request(RESPONSES, max_output_tokens=9, max_tokens=5).max_tokens == 9
    assert request(MESSAGES, max_tokens=11).max_tokens == 11
    assert request(max_tokens=-5).max_tokens is None
    assert request(max_tokens="5").max_tokens == 5
    assert request(max_tokens="many").max_tokens is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"{",
        b'{"temperature":0.7',
        b'{"temperature":NaN}',
        b'{"temperature":0.7} {}',
        b"\xff\xfe{\x00}\x00",
        b'{"messages":' + b"[" * 200_000,
        b'{"temperature":' + b"[" * 200_000,
        b'{"model":"\xff\xfe"}',
    ],
)
def test_a_request_that_is_no_json_object_gives_none(body):
    assert read_request(CHAT, body) is None


@given(st.binary(max_size=200))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_bytes_raise(body):
    for endpoint in ENDPOINTS:
        read_request(endpoint, body)
    read_reply(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["model", "temperature", "n", "prompt", "stream", "max_tokens", "max_completion_tokens", "usage", "metrics"]


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_json_gives_a_number_out_of_range(body):
    text = json.dumps(body).encode()
    for endpoint in ENDPOINTS:
        fields = read_request(endpoint, text)
        if fields is not None:
            assert fields.temperature is None or math.isnan(fields.temperature) or 0 <= fields.temperature < math.inf
            assert fields.choices >= 1
            assert fields.max_tokens is None or fields.max_tokens >= 0
    reply = read_reply(text)
    assert reply is None or reply.completion_tokens is None or reply.completion_tokens >= 0


def reply(**fields):
    return read_reply(json.dumps(fields).encode())


SPECULATION = {
    "num_spec_steps": 9,
    "num_draft_tokens": 27,
    "num_accepted_draft_tokens": 17,
    "acceptance_histogram": [2, 2, 0, 5],
}


def speculation(**changes):
    return reply(model="lab", usage={"completion_tokens": 24}, metrics={"speculative_decoding": SPECULATION | changes})


def test_acceptance_is_read_whole():
    assert speculation().acceptance == RequestAcceptance(9, 27, 17, (2, 2, 0, 5))


@pytest.mark.parametrize("histogram", [None, []])
def test_acceptance_may_lack_its_histogram(histogram):
    assert speculation(acceptance_histogram=histogram).acceptance == RequestAcceptance(9, 27, 17)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_accepted_draft_tokens": 28, "acceptance_histogram": None},  # more than drafted
        {"num_accepted_draft_tokens": -1, "acceptance_histogram": None},
        {"num_draft_tokens": -27},
        {"num_spec_steps": -9, "acceptance_histogram": None},
        {"num_spec_steps": 0, "acceptance_histogram": None},  # drafted in no step
        {"num_accepted_draft_tokens": 16.5},
        {"num_accepted_draft_tokens": "17"},
        {"num_accepted_draft_tokens": None},
        {"num_draft_tokens": None},
        {"num_draft_tokens": 10**30},
        {"num_spec_steps": True},
        {"acceptance_histogram": [2, 2, 0, 6]},  # other sums
        {"acceptance_histogram": [11, 2, 0, 5, -9]},
        {"acceptance_histogram": [9] * 5_000},
        {"acceptance_histogram": "2205"},
    ],
)
def test_impossible_acceptance_is_none_and_counted_and_affects_no_other_field(changes):
    fields = speculation(**changes)
    assert fields.acceptance is None
    assert fields.acceptance_malformed
    assert (fields.model, fields.completion_tokens) == ("lab", 24)


@pytest.mark.parametrize("metrics", [None, {}, {"speculative_decoding": None}, {"queue_time_ms": 3.5}])
def test_absent_acceptance_is_none_and_no_fault(metrics):
    fields = reply(metrics=metrics)
    assert fields.acceptance is None
    assert not fields.acceptance_malformed


def test_usage_goes_by_each_endpoints_names():
    chat = reply(usage={"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7})
    assert (chat.prompt_tokens, chat.completion_tokens) == (3, 4)
    responses = reply(usage={"input_tokens": 3, "output_tokens": 4})
    assert (responses.prompt_tokens, responses.completion_tokens) == (3, 4)


def test_cached_tokens_are_put_back_into_the_input_of_messages():
    usage = {"input_tokens": 3, "cache_read_input_tokens": 16, "cache_creation_input_tokens": 1, "output_tokens": 4}
    assert reply(usage=usage).prompt_tokens == 20


@pytest.mark.parametrize("count", [-4, 2**60, 1.5, "4", True])
def test_usage_that_cannot_be_makes_the_reply_unreadable(count):
    assert reply(usage={"prompt_tokens": 3, "completion_tokens": count}) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"error": {"message": "m", "code": 500}},
        {"object": "error", "message": "m", "code": 400},
        {"type": "error", "error": {"type": "internal_error"}},
        {"type": "response.failed", "response": {"status": "failed"}},
    ],
)
def test_every_way_to_say_error_is_known(fields):
    assert reply(**fields).error


def test_a_null_error_is_no_error():
    assert not reply(error=None, status="completed", object="response").error
