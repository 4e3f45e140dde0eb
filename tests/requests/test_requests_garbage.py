"""What is no packet, or a packet with impossible numbers, is refused, counted, and costs nobody else."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.requests.middleware.senders import SenderBook
from sidecar.requests.middleware.wire import MAX_PACKET_BYTES, begun
from sidecar.requests.observe.payload import CHAT
from tests.requests.requests_tools import Nothing, finished, packet

BAD_FIELDS = [
    {"temperature": -0.1},
    {"temperature": float("inf")},
    {"first_token": 3.0},  # after the end
    {"acceptance": (3, 9, 10, ())},  # more accepted than drafted
    {"acceptance": (0, 9, 2, ())},
    {"acceptance": (3, 9, 2, (1, 1))},
]


@pytest.mark.parametrize("changes", BAD_FIELDS, ids=repr)
async def test_numbers_that_contradict_one_another_are_refused_and_the_request_ends(
    receiver, sink, connect, eventually, changes
):
    connect().send(packet(begun(0, CHAT, 1.0), finished(0, **changes), finished(1), oldest_open=0))
    await eventually(lambda: len(sink.records) == 2)
    assert sink.drops == {"contradictory": 1}
    assert [record.outcome for record in sink.records] == ["aborted", "completed"]


def changed(place, value):
    """A good packet with one thing changed: ``place`` is a path of indices."""
    fields = msgspec.msgpack.decode(packet(begun(0, CHAT, 10.0), finished(1)))
    inner = fields
    for index in place[:-1]:
        inner = inner[index]
    inner[place[-1]] = value
    return msgspec.msgpack.encode(fields)


GARBAGE = [
    b"x",
    b"\x00" * 1_000,
    b"\x96",
    b"\x91" * 60_000,
    msgspec.msgpack.encode([]),
    msgspec.msgpack.encode({"version": 1}),
    packet(finished(0)) + b"\x00",
    packet(finished(0))[:-1],
    changed([0], 2),
    changed([0], "1"),
    changed([1], ""),
    changed([1], "a" * 65),
    changed([1], "a\nb"),
    changed([2], -1),
    changed([2], 2**60),
    changed([3], None),
    changed([4], {"queue_full": -5}),
    changed([4], {str(number): 1 for number in range(65)}),
    changed([5], [[2, 0, 0, 1.0]]),
    changed([5], [[0, 0, 0, 1.0]] * 513),
    changed([5, 0, 2], 4),
    changed([5, 0, 3], -1.0),
    changed([5, 0, 3], float("nan")),
    changed([5, 0, 3], 1e300),
    changed([5, 1, 3], 3),
    changed([5, 1, 7], "m" * 257),
    changed([5, 1, 9], 0),
    changed([5, 1, 9], 2**21),
    changed([5, 1, 13], -24),
    changed([5, 1, 15], [3, 9, 2, [0] * 1_025]),
    changed([5, 1, 15], [3, 9, 2]),
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_is_counted_and_ends_its_connection_alone(receiver, sink, connect, eventually, data):
    good, bad = connect(), connect()
    good.send(packet(finished(0), sender="good"))
    bad.send(data)
    await eventually(lambda: sink.drops)
    good.send(packet(finished(1), sender="good", first=1))
    await eventually(lambda: len(sink.records) == 2)
    assert sink.drops == {"malformed": 1}
    with pytest.raises(OSError, match="Broken pipe"):
        bad.send(data)


async def test_a_packet_over_the_size_is_refused(receiver, sink, connect, eventually):
    connect().send(packet(finished(0)) + b"\x00" * MAX_PACKET_BYTES)
    await eventually(lambda: sink.drops)
    assert sink.drops == {"malformed": 1}


async def test_a_connection_speaks_for_one_sender(receiver, sink, connect, eventually):
    one = connect()
    one.send(packet(finished(0), sender="a"))
    one.send(packet(finished(0), sender="b"))
    await eventually(lambda: sink.drops)
    assert sink.drops == {"malformed": 1}


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_no_bytes_raise(data):
    assert SenderBook(Nothing(), lambda: 0.0).take(memoryview(data)) is None


@given(data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_changed_bytes_raise(data):
    sent = bytearray(packet(begun(0, CHAT, 1.0), finished(0), finished(1)))
    for place in data.draw(st.lists(st.integers(0, len(sent) - 1), min_size=1, max_size=5)):
        sent[place] = data.draw(st.integers(0, 255))
    SenderBook(Nothing(), lambda: 0.0).take(memoryview(sent))
