"""What the sidecar reads from a packet, and what it refuses."""

import json

import pytest
from pydantic import TypeAdapter, ValidationError

from sidecar.requests.messages import (
    MAX_FINISHED,
    AdapterTotals,
    Endings,
    FinishedRequest,
    HelloState,
    Malformed,
    Outcome,
    Packet,
    PromptTotals,
    TemperatureTotals,
    Unreadable,
    read_packet,
)
from tests.requests.packets import DONE, HELLO, TICK, packet


def test_a_packet_is_read_with_all_its_parts():
    read = read_packet(packet(hello=HELLO, tick=TICK, done=[DONE]))
    assert read.hello is not None
    assert (read.hello.state, read.hello.speculation.method) == (HelloState.OBSERVING, "ngram")
    assert read.tick is not None
    assert read.tick.temperature[0] == TemperatureTotals(70, Endings(1, 2, 3, 4), 6, 18, 12, (6, 6, 6), (6, 4, 2))
    assert read.tick.temperature[1].temperature == "other"
    assert read.tick.prompt == (PromptTotals(7, 11, 10, 30, 20),)
    assert read.tick.adapter[0] == AdapterTotals("", 1, 2, 6, 3)
    assert read.tick.steps[0].request_seconds == 4.0
    done = {**DONE, "lengths": (3, 5, 8, 4), "parameters": ("min_p",), "outcome": Outcome.ABORTED}
    assert read.done == (FinishedRequest(**done),)


def test_unknown_keys_are_ignored():
    assert read_packet(packet(hello={**HELLO, "new": 1}, tick={**TICK, "new": []}, done=[{**DONE, "new": {}}], new=1))


@pytest.mark.parametrize(
    "parts",
    [
        {"hello": {**HELLO, "state": "asleep"}},
        {"hello": {**HELLO, "reason": "x" * 201}},
        {"hello": {**HELLO, "engine": -1}},
        {"hello": {**HELLO, "start": ""}},
        {"done": [{**DONE, "lengths": [0] * 34}]},
        {"tick": {**TICK, "total": [1, 2]}},
        {"tick": {**TICK, "total": [1, 2, 3, 4]}},
        {"tick": {**TICK, "lost": 1.5}},
        {"tick": {**TICK, "temperature": [["hot", [0, 0, 0, 0], 0, 0, 0, [], []]]}},
        {"tick": {**TICK, "temperature": [[70, [0, 0, 0, 0], 0, 0, 0, [0] * 33, []]]}},
        {"tick": {**TICK, "prompt": [[65, 1, 1, 1, 1]]}},
        {"tick": {**TICK, "output": [["prose", 1, 1, 1, 1]]}},
        {"tick": {**TICK, "adapter": [["a" * 257, 1, 1, 1, 1]]}},
        {"tick": {**TICK, "adapter": [[str(key), 1, 1, 1, 1] for key in range(258)]}},
        {"tick": {**TICK, "steps": [[1, 1, -0.5, 1, 1, 1]]}},
        {"done": [{**DONE, "temperature": "70"}]},
        {"done": [{**DONE, "temperature": True}]},
        {"done": [{**DONE, "drafts": 2**53 + 1}]},
        {"done": [{**DONE, "accepted_tokens": -1}]},
        {"done": [{**DONE, "arrival": float("nan")}]},
        {"done": [{**DONE, "arrival": float("inf")}]},
        {"done": [{**DONE, "outcome": "lost"}]},
        {"done": [{key: DONE[key] for key in DONE if key != "arrival"}]},
        {"done": [DONE] * (MAX_FINISHED + 1)},
        {"done": DONE},
        {"done": [DONE, {**DONE, "accepted_tokens": 61}]},  # more accepted than drafted, here and below
        {"tick": {**TICK, "total": [1, 2, 3]}},
        {"tick": {**TICK, "output": [["free", 1, 1, 2, 3]]}},
    ],
)
def test_a_field_out_of_its_type_or_range_refuses_the_packet(parts):
    with pytest.raises(Malformed):
        read_packet(packet(**parts))


@pytest.mark.parametrize(
    "text",
    [
        b'{"v":1,"done":[' + b"{}," * 20_000 + b"{}]}",
        b'{"v":1,"tick":{"at":1,"lost":0,"total":[0,0,0],"steps":[' + b"[]," * 20_000 + b"[]]}}",
        b'{"v":1,"done":[{"lengths":[' + b'"",' * 15_000 + b'""]}]}',
    ],
)
def test_what_is_wrong_with_a_packet_is_not_all_collected(text):
    """That would take 150 ms for a packet of the largest size."""
    with pytest.raises(ValidationError) as wrong:
        TypeAdapter(Packet).validate_json(text, strict=True)
    assert wrong.value.error_count() < 20


@pytest.mark.parametrize("text", [b'{"v": 2, "hello": {"plugin": "1.4", "state": 7}, "tick": 5}', b'{"v": 0}'])
def test_a_packet_of_another_version_is_known_as_such(text):
    assert read_packet(text) == Unreadable(json.loads(text)["v"])


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"v": "1"}', b'{"v": -1}', b"\xff", b"[" * 999])
def test_what_is_no_packet_of_any_version_is_malformed(text):
    with pytest.raises(Malformed):
        read_packet(text)
