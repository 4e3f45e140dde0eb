"""Malformed packets and packets with impossible numbers are refused and counted, and affect no other sender."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.requests.middleware.wire import MAX_PACKET_BYTES, Packet
from sidecar.requests.record import RequestAcceptance
from tests.requests.requests_tools import begun, finished, packet

BAD_FIELDS = [
    {"path": "/v1/embeddings"},
    {"temperature": -0.1},
    {"temperature": float("inf")},
    {"first_token": 13.0},  # after the end
    {"first_token": 9.0},  # before the start
    {"end": 9.0, "first_token": None},
    {"acceptance": RequestAcceptance(3, 9, 10)},  # more accepted than drafted
    {"acceptance": RequestAcceptance(0, 9, 2)},
    {"acceptance": RequestAcceptance(3, 9, 2, (1, 1))},
    {"event_offsets": (1.0,)},
]


@pytest.mark.parametrize("changes", BAD_FIELDS, ids=repr)
async def test_numbers_that_contradict_one_another_are_refused_and_the_request_ends(
    receiver, sink, connect, eventually, changes
):
    connect().send(packet(begun(0), finished(0, **changes), finished(1)))
    await eventually(lambda: len(sink.records) == 2)
    assert sink.drops == {"contradictory": 1}
    assert [record.outcome for record in sink.records] == ["aborted", "completed"]


def changed(*place, to):
    """A good packet with one thing changed, deleted if ``to`` is None; ``place`` is a path of keys."""
    fields = msgspec.msgpack.decode(packet(begun(0), finished(1)))
    inner = fields
    for key in place[:-1]:
        inner = inner[key]
    if to is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = to
    return msgspec.msgpack.encode(fields)


GARBAGE = [
    b"x",
    b"\x00" * 1_000,
    b"\x84",
    b"\x91" * 60_000,
    msgspec.msgpack.encode([]),
    msgspec.msgpack.encode({"version": 1}),
    packet(finished(0)) + b"\x00",
    packet(finished(0))[:-1],
    changed("version", to=1),
    changed("version", to="2"),
    changed("hello", to=1),
    changed("started", to=None),
    changed("dropped", to={"queue_full": -5}),
    changed("dropped", to={"a\nb": 1}),
    changed("dropped", to={"a" * 65: 1}),
    changed("dropped", to={f"a{number}": 1 for number in range(65)}),
    changed("started", to=[{"id": "0", "start": 1.0}] * 21),
    changed("started", 0, "id", to="a" * 257),
    changed("started", 0, "start", to=-1.0),
    changed("started", 0, "start", to=float("nan")),
    changed("started", 0, "start", to=1e300),
    changed("finished", 0, "outcome", to="lost"),
    changed("finished", 0, "model", to="m" * 257),
    changed("finished", 0, "choices", to=0),
    changed("finished", 0, "choices", to=2**21),
    changed("finished", 0, "completion_tokens", to=-24),
    changed("finished", 0, "acceptance", "histogram", to=[0] * 129),
    changed("finished", 0, "acceptance", "drafts", to=2**60),
    changed("finished", 0, "acceptance", "drafts", to=None),
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_is_counted_and_ends_its_connection_alone(receiver, sink, connect, eventually, data):
    good, bad = connect(), connect()
    good.send(packet(finished(0)))
    bad.send(data)
    await eventually(lambda: sink.drops)
    good.send(packet(finished(1)))
    await eventually(lambda: len(sink.records) == 2)
    assert sink.drops == {"malformed": 1}
    with pytest.raises(OSError, match="Broken pipe"):
        bad.send(data)


async def test_a_packet_over_the_size_is_refused(receiver, sink, connect, eventually):
    connect().send(packet(finished(0)) + b"\x00" * MAX_PACKET_BYTES)
    await eventually(lambda: sink.drops)
    assert sink.drops == {"malformed": 1}


def decoded(data):
    """What a receiver makes of bytes: a packet, or the one class of error that it catches."""
    try:
        return msgspec.msgpack.decode(data, type=Packet)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_no_bytes_raise(data):
    assert decoded(data) is None


@given(data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_changed_bytes_raise(data):
    sent = bytearray(packet(begun(0), finished(0), finished(1)))
    for place in data.draw(st.lists(st.integers(0, len(sent) - 1), min_size=1, max_size=5)):
        sent[place] = data.draw(st.integers(0, 255))
    decoded(bytes(sent))
