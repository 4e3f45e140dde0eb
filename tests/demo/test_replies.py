"""The simulated responses against recorded ones of vLLM 0.32: keys in order, types, headers, events."""

import json
from itertools import pairwise

import pytest

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm

CASES = [
    "chat",
    "chat.without-metrics",
    "chat-n2",
    "chat-no-temperature",
    "chat-no-temperature.without-metrics",
    "chat-stream",
    "chat-stream.without-metrics",
    "chat-stream-usage",
    "chat-stream-usage.without-metrics",
    "completion",
    "completion-stream",
    "completion-two-prompts",
    "bad-model",
    "bad-temperature",
]
# Of these keys the value must match, not the type alone.
SAME_VALUE = {"object", "model", "role", "finish_reason", "system_fingerprint", "num_spec_tokens", "index"}


@pytest.fixture
def recorded(data, case):
    return json.loads((data / f"exchanges/{case}.json").read_text())


def shape(value, key=None):
    if isinstance(value, dict):
        return [(name, shape(child, name)) for name, child in value.items()]
    if isinstance(value, list):
        return ["list", *(shape(child) for child in value)]
    return value if key in SAME_VALUE else type(value).__name__


def event_shapes(body):
    """The stream's events; equal ones in a row count once, as the number of steps is drawn."""
    assert body.endswith("data: [DONE]\n\n")
    shapes = []
    for event in body.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]:
        assert event.startswith("data: ")
        found = shape(json.loads(event.removeprefix("data: ")))
        if not shapes or shapes[-1] != found:
            shapes.append(found)
    return shapes


@pytest.mark.parametrize("case", CASES)
async def test_response_has_the_shape_of_the_recorded_one(client, recorded, case):
    flags = "without-metrics" not in case
    options = SimulatorOptions(model_name="lab", exact=flags, force_include_usage=flags)
    async with (
        SimulatedVllm(options) as sim,
        client.post(sim.url + recorded["path"], json=recorded["request"]) as response,
    ):
        body = await response.text()
    assert response.status == recorded["status"]
    headers = {name.lower() for name in response.headers if name not in {"Date", "Server", "Connection", "Keep-Alive"}}
    assert headers == set(recorded["headers"])
    assert response.headers["Content-Type"] == recorded["headers"]["content-type"]
    if recorded["status"] != 200:
        assert body == recorded["body"]
    elif recorded["request"].get("stream"):
        assert event_shapes(body) == event_shapes(recorded["body"])
    else:
        assert shape(json.loads(body)) == shape(json.loads(recorded["body"]))


@pytest.mark.parametrize("case", ["chat-stream", "completion-stream"])
async def test_events_carry_one_engine_step_each_and_add_up(client, recorded, case):
    """Each event but the first has at least one token and at most K + 1; the drafts are the events after it."""
    async with (
        SimulatedVllm(SimulatorOptions(model_name="lab")) as sim,
        client.post(sim.url + recorded["path"], json=recorded["request"]) as response,
    ):
        events = [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: {")]
    end = events.pop()
    totals = [event["usage"]["completion_tokens"] for event in events]
    if case == "chat-stream":
        assert totals.pop(0) == 0
    assert totals[0] == 1
    grown = [after - before for before, after in pairwise(totals)]
    assert all(1 <= tokens <= 4 for tokens in grown)
    numbers = end["metrics"]["speculative_decoding"]
    histogram = numbers["acceptance_histogram"]
    assert end["usage"]["completion_tokens"] == totals[-1] == 24
    assert sum(histogram) == numbers["num_spec_steps"] == len(grown)
    assert sum(j * steps for j, steps in enumerate(histogram)) == numbers["num_accepted_draft_tokens"]
    assert numbers["num_draft_tokens"] == 3 * len(grown)
    # All but the last step kept what they accepted; the last may have been cut at max_tokens.
    cut = 1 + len(grown) + numbers["num_accepted_draft_tokens"] - 24
    assert 0 <= cut <= 3


@pytest.mark.parametrize(
    ("request_fields", "options", "carries"),
    [
        ({}, {}, True),
        ({"n": 2}, {}, False),
        ({"prompt": ["a", "b"]}, {}, False),
        ({"max_tokens": 1}, {}, False),  # no verification step, nothing to tell
        ({}, {"exact": False}, False),
        ({}, {"num_speculative_tokens": 0}, False),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_acceptance_is_reported_only_where_vllm_reports_it(client, request_fields, options, carries, stream):
    body = {"prompt": "a", "max_tokens": 20, "ignore_eos": True, "stream": stream, **request_fields}
    async with (
        SimulatedVllm(SimulatorOptions(**options)) as sim,
        client.post(f"{sim.url}/v1/completions", json=body) as response,
    ):
        text = await response.text()
    assert ('"speculative_decoding":{' in text) == carries


@pytest.mark.parametrize("choices", [1, 2])
async def test_stream_without_usage_has_no_acceptance(client, choices):
    body = {"prompt": "a", "max_tokens": 20, "stream": True, "n": choices, "temperature": 0.5}
    options = SimulatorOptions(force_include_usage=False)
    async with SimulatedVllm(options) as sim, client.post(f"{sim.url}/v1/completions", json=body) as response:
        text = await response.text()
    assert "usage" not in text
    assert "metrics" not in text
    assert text.count("system_fingerprint") == choices  # as seen on vLLM 0.32
