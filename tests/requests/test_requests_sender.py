"""Sending: never a wait, every event delivered or counted, whatever the receiving side does."""

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from sidecar.requests.middleware.receiver import MiddlewareReceiver
from sidecar.requests.middleware.sender import EventSender
from sidecar.requests.middleware.wire import MAX_PACKET_BYTES, Finished, Packet, begun
from sidecar.requests.observe.payload import CHAT


def finished(number, model="lab", histogram=(1, 2)):
    return Finished(
        number, 0, 0, 1.0, 0.5, 2.0, model, 0.7, 1, True, None, 3, 24, 12, (3, 9, 2, histogram)
    )  # fmt: skip


@pytest.fixture
async def sender(socket_path):
    made = []

    def make(**options):
        made.append(EventSender(socket_path, asyncio.get_running_loop(), **({"interval": 0.005} | options)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def tell(sender, count):
    for _ in range(count):
        number = sender.next_number()
        sender.started(begun(number, CHAT, 1.0))
        sender.finished(finished(number))


@pytest.fixture
def listening(socket_path):
    """A socket that takes connections and reads nothing by itself."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    listener.bind(socket_path)
    listener.listen()
    yield listener
    listener.close()


def read_all(connection):
    packets = []
    while True:
        try:
            data = connection.recv(MAX_PACKET_BYTES * 2)
        except BlockingIOError:
            return packets
        if not data:
            return packets
        assert len(data) <= MAX_PACKET_BYTES
        packets.append(msgspec.msgpack.decode(data, type=Packet))


async def test_a_burst_arrives_whole(sender, receiver, sink, eventually):
    one = sender()
    tell(one, 256)
    await eventually(lambda: len(sink.records) == 256)
    assert len(sink.starts) == 256
    assert not sink.drops
    assert not one._open, "what has ended and was told is forgotten"
    assert one._bytes == 0


async def test_many_events_share_a_packet_and_none_is_over_its_size(sender, listening):
    one = sender(interval=60)
    for number in range(600):
        one.finished(finished(number, model="ü" * 250, histogram=(2**52,) * 100))
    one.flush()
    connection, _ = listening.accept()
    connection.setblocking(False)
    packets = read_all(connection)
    assert sum(len(packet.events) for packet in packets) > 200
    assert 3 < len(packets) < 100
    connection.close()


async def test_no_system_call_for_an_event(sender, listening, monkeypatch):
    """White box: with the socket module out of reach, events can still be taken."""
    one = sender(interval=60)
    monkeypatch.setattr("sidecar.requests.middleware.sender.socket", None)
    tell(one, 1_000)
    monkeypatch.undo()


async def test_nothing_is_lost_while_the_sidecar_starts(sender, socket_path, sink, eventually):
    one = sender()
    tell(one, 10)
    await eventually(lambda: one._retry_at > 0)
    receiver = MiddlewareReceiver(socket_path, sink)
    await receiver.start()
    await eventually(lambda: len(sink.records) == 10)
    assert not sink.drops
    assert [record.id.rpartition("-")[2] for record in sink.records] == [f"{number:x}" for number in range(10)]
    await receiver.stop()


async def test_without_a_sidecar_the_oldest_events_are_dropped_and_counted(sender, socket_path, sink, eventually):
    one = sender(max_events=20)
    tell(one, 50)
    assert len(one._queue) == 20
    receiver = MiddlewareReceiver(socket_path, sink)
    await receiver.start()
    await eventually(lambda: len(sink.records) == 10)
    assert sink.drops == {"queue_full": 80}
    assert [record.id.rpartition("-")[2] for record in sink.records] == [f"{number:x}" for number in range(40, 50)]
    await receiver.stop()


async def test_the_queue_is_bounded_in_bytes_too(sender):
    one = sender(max_bytes=5_000, interval=60)
    tell(one, 1_000)
    assert sum(len(event) for _, event in one._queue) == one._bytes <= 5_000
    assert len(one._queue) + one._dropped["queue_full"] == 2_000


async def test_a_slow_sidecar_delays_nothing_and_every_event_is_delivered_or_counted(sender, listening, eventually):
    one = sender(max_events=500)
    tell(one, 100)
    await eventually(lambda: one._sent == 200)  # connected
    tell(one, 20_000)  # far more than any socket buffer takes
    connection, _ = listening.accept()
    connection.setblocking(False)
    events, dropped, expected = 0, 0, 0

    def all_there():
        nonlocal events, dropped, expected
        for packet in read_all(connection):
            assert packet.first == expected, "numbers are of events sent, so there is no gap"
            events += len(packet.events)
            expected += len(packet.events)
            dropped += packet.dropped.get("queue_full", 0)
        return events + dropped == 40_200

    await eventually(all_there)
    assert dropped > 0
    connection.close()


async def test_a_sidecar_that_restarts_gets_the_rest(sender, socket_path, sink, eventually):
    one = sender()
    first = MiddlewareReceiver(socket_path, sink)
    await first.start()
    tell(one, 5)
    await eventually(lambda: len(sink.records) == 5)
    await first.stop()
    tell(one, 5)
    second = MiddlewareReceiver(socket_path, sink)
    await second.start()
    await eventually(lambda: len(sink.records) == 10)
    assert not sink.drops
    assert [record.id.rpartition("-")[2] for record in sink.records] == [f"{number:x}" for number in range(10)]
    assert [record.id for record in sink.records] == [request.id for request in sink.starts]
    await second.stop()


async def test_a_socket_that_is_removed_costs_nothing_but_events(sender, receiver, sink, eventually, socket_path):
    one = sender(max_events=10)
    Path(socket_path).unlink()
    tell(one, 20)
    await eventually(lambda: one._retry_at > 0)
    assert one._dropped == {"queue_full": 30}


@pytest.fixture(params=["file", "stream socket", "long path", "folder", "null byte"])
def blocked_path(request, socket_path):
    """A path at which no sidecar can listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        if request.param == "file":
            Path(socket_path).touch()
        elif request.param == "stream socket":
            other.bind(socket_path)
            other.listen()
        elif request.param == "folder":
            Path(socket_path).mkdir()
        yield {"long path": "/x" * 200, "null byte": "/a\0b"}.get(request.param, socket_path)


async def test_whatever_is_at_the_path_nothing_raises(blocked_path, eventually):
    one = EventSender(blocked_path, asyncio.get_running_loop(), interval=0.001)
    tell(one, 3)
    await eventually(lambda: one._backoff > 0.1)
    assert len(one._queue) == 6
    one.close()


async def test_retries_back_off_and_recover(sender, socket_path, sink, eventually):
    one = sender()
    tell(one, 1)
    await eventually(lambda: one._backoff >= 0.4)
    receiver = MiddlewareReceiver(socket_path, sink)
    await receiver.start()
    await eventually(lambda: len(sink.records) == 1)
    assert one._backoff == 0.1
    await receiver.stop()


async def test_an_end_that_was_dropped_still_closes_its_request(sender, receiver, sink, eventually):
    """Its start was told: it must not stay open for ever."""
    one = sender()
    number = one.next_number()
    one.started(begun(number, CHAT, 1.0))
    await eventually(lambda: len(sink.starts) == 1)
    one.forgotten(number, "internal")
    await eventually(lambda: len(sink.records) == 1)
    assert sink.records[0].id == sink.starts[0].id
    assert sink.records[0].outcome == "aborted"
    assert sink.drops == {"internal": 1}


async def test_a_running_request_is_not_closed_by_those_that_end_before_it(sender, receiver, sink, eventually):
    one = sender()
    slow = one.next_number()
    one.started(begun(slow, CHAT, 1.0))
    tell(one, 5)
    await eventually(lambda: len(sink.records) == 5)
    tell(one, 5)
    await eventually(lambda: len(sink.records) == 10)
    one.finished(finished(slow))
    await eventually(lambda: len(sink.records) == 11)
    assert {record.outcome for record in sink.records} == {"completed"}


async def test_it_never_blocks_the_event_loop(sender, receiver, sink, eventually, no_blocking):
    tell(sender(), 300)
    await eventually(lambda: len(sink.records) == 300)
