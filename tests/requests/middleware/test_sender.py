"""Sending: it never waits, and every event is delivered or counted, whatever the receiver does."""

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from sidecar.requests.middleware.event_receiver import EventReceiver
from sidecar.requests.middleware.sender import EventSender
from sidecar.requests.middleware.wire import MAX_PACKET_BYTES, MAX_PACKET_EVENTS, Packet
from sidecar.requests.record import LARGEST_COUNT, LONGEST_HISTOGRAM, LONGEST_NAME, RequestAcceptance
from tests.requests.requests_tools import begun, finished


@pytest.fixture
async def sender(socket_path):
    made = []

    def make(**options):
        made.append(EventSender(socket_path, asyncio.get_running_loop(), **({"interval": 0.005} | options)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def send(sender, numbers):
    """Starts and ends of these requests; how many the sender took."""
    taken = 0
    for number in numbers:
        if sender.started(begun(number)):
            sender.finished(finished(number))
            taken += 1
    return taken


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


def numbers_of(sink):
    return [int(record.id.rpartition("-")[2], 16) for record in sink.records]


async def test_a_burst_arrives_whole(sender, receiver, sink, eventually):
    send(sender(), range(256))
    await eventually(lambda: len(sink.records) == 256)
    assert numbers_of(sink) == list(range(256))
    assert [request.id for request in sink.starts] == [record.id for record in sink.records]
    assert not sink.drops


async def test_many_events_share_a_packet_and_the_largest_fit_one(sender, listening):
    one = sender(interval=60)
    largest = RequestAcceptance(LARGEST_COUNT, LARGEST_COUNT, LARGEST_COUNT, (LARGEST_COUNT,) * LONGEST_HISTOGRAM)
    counts = dict.fromkeys(("max_tokens", "prompt_tokens", "completion_tokens", "stream_events"), LARGEST_COUNT)
    for number in range(3 * MAX_PACKET_EVENTS):
        one.finished(finished(number, model="\U0001f600" * LONGEST_NAME, acceptance=largest, **counts))
    one.close()
    connection, _ = listening.accept()
    connection.setblocking(False)
    assert [len(packet.finished) for packet in read_all(connection)] == [MAX_PACKET_EVENTS] * 3
    connection.close()


async def test_no_system_call_for_an_event(sender, listening, monkeypatch):
    """White box: with the socket module out of reach, events can still be taken."""
    one = sender(interval=60)
    monkeypatch.setattr("sidecar.requests.middleware.sender.socket", None)
    send(one, range(1_000))
    monkeypatch.undo()


async def test_nothing_is_lost_while_the_sidecar_starts(sender, socket_path, sink, eventually):
    one = sender()
    send(one, range(10))
    await eventually(lambda: one._retry_at > 0)
    receiver = EventReceiver(socket_path, sink)
    await receiver.start()
    await eventually(lambda: len(sink.records) == 10)
    assert not sink.drops
    assert numbers_of(sink) == list(range(10))
    await receiver.stop()


async def test_without_a_sidecar_the_oldest_events_are_dropped_and_counted(sender, socket_path, sink, eventually):
    one = sender(max_events=20)
    assert send(one, range(50)) == 50
    assert len(one._queue) <= 20
    receiver = EventReceiver(socket_path, sink)
    await receiver.start()
    await eventually(lambda: sink.records and sink.records[-1].id.endswith("-31"))
    kept = len(sink.starts) + len(sink.records)
    assert sink.drops == {"queue_full": 100 - kept}
    assert kept >= 19
    assert numbers_of(sink) == list(range(50 - len(sink.records), 50))
    await receiver.stop()


async def test_a_slow_sidecar_gets_the_end_of_every_request_whose_start_it_gets(sender, listening, eventually):
    one = sender(max_events=500)
    send(one, range(10))
    await eventually(lambda: not one._queue)  # connected
    taken = 10 + send(one, range(10, 20_000))  # far more than any socket buffer takes
    assert taken < 1_000
    assert len(one._queue) <= 500
    connection, _ = listening.accept()
    connection.setblocking(False)
    starts, ends, dropped = [], [], 0

    def all_there():
        nonlocal dropped
        for packet in read_all(connection):
            starts.extend(request.id for request in packet.started)
            ends.extend(record.id for record in packet.finished)
            dropped += packet.dropped.get("queue_full", 0)
        return len(ends) + dropped == 20_000

    await eventually(all_there)
    assert starts == ends
    assert len(ends) == taken
    connection.close()


async def test_requests_that_run_keep_the_room_for_their_ends(sender, listening, eventually):
    one = sender(max_events=20)
    send(one, [0])
    await eventually(lambda: not one._queue)
    running = [number for number in range(1, 100) if one.started(begun(number))]
    assert 5 < len(running) < 20
    for number in running:
        one.finished(finished(number))
    assert len(one._queue) <= 20
    assert one.started(begun(100)) is False


async def test_a_sidecar_that_restarts_gets_the_rest(sender, socket_path, sink, eventually):
    one = sender()
    first = EventReceiver(socket_path, sink)
    await first.start()
    send(one, range(5))
    await eventually(lambda: len(sink.records) == 5)
    await first.stop()
    send(one, range(5, 10))
    second = EventReceiver(socket_path, sink)
    await second.start()
    await eventually(lambda: len(sink.records) == 10)
    assert not sink.drops
    assert numbers_of(sink) == list(range(10))
    assert [record.id for record in sink.records] == [request.id for request in sink.starts]
    await second.stop()


async def test_a_removed_socket_loses_only_events(sender, receiver, sink, eventually, socket_path):
    one = sender(max_events=10)
    Path(socket_path).unlink()
    send(one, range(20))
    await eventually(lambda: one._retry_at > 0)
    assert one._dropped["queue_full"] >= 30
    assert len(one._queue) <= 10


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


async def test_nothing_raises_whatever_is_at_the_path(blocked_path, eventually):
    one = EventSender(blocked_path, asyncio.get_running_loop(), interval=0.001)
    send(one, range(3))
    await eventually(lambda: one._retry_at > 0)
    assert len(one._queue) == 6
    one.close()


async def test_it_never_blocks_the_event_loop(sender, receiver, sink, eventually, no_blocking):
    send(sender(), range(300))
    await eventually(lambda: len(sink.records) == 300)
