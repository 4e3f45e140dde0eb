"""What the sidecar reads from a packet, and what it refuses."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.requests.messages import (
    MAX_FINISHED,
    AdapterTotals,
    AnotherVersion,
    Endings,
    FinishedRequest,
    HelloState,
    Malformed,
    Outcome,
    PromptTotals,
    TemperatureTotals,
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
    ],
)
def test_a_field_out_of_its_type_or_range_refuses_the_packet(parts):
    with pytest.raises(Malformed):
        read_packet(packet(**parts))


def test_a_packet_of_another_version_says_whose_it_is():
    with pytest.raises(AnotherVersion) as met:
        read_packet(b'{"v": 2, "hello": {"plugin": "1.4", "state": 7}, "tick": "different"}')
    assert (met.value.version, met.value.plugin) == (2, "1.4")
    with pytest.raises(AnotherVersion) as met:
        read_packet(b'{"v": 0}')
    assert (met.value.version, met.value.plugin) == (0, None)
    with pytest.raises(AnotherVersion) as met:
        read_packet(rb'{"v": 2, "hello": {"plugin": "\ud800"}}')
    assert met.value.plugin == "?"  # what is shown on pages can be encoded


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"v": "1"}', b'{"v": -1}', b"\xff", b"[" * 999])
def test_what_is_no_packet_of_any_version_is_malformed(text):
    with pytest.raises(Malformed):
        read_packet(text)


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_nothing_else_is_raised(text):
    with contextlib.suppress(Malformed, AnotherVersion):
        read_packet(text if isinstance(text, bytes) else text.encode(errors="replace"))


def test_more_accepted_than_drafted_does_not_add_up():
    read = read_packet(packet(tick=TICK, done=[DONE, {**DONE, "accepted_tokens": 61}]))
    assert [request.adds_up for request in read.done] == [True, False]
    assert read.tick.adds_up
    for table, row in (("total", [1, 2, 3]), ("output", [["free", 1, 1, 2, 3]])):
        assert not read_packet(packet(tick={**TICK, table: row})).tick.adds_up
