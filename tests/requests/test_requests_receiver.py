"""Receiving: strict about what comes, generous about who comes and goes, and no request stays open for ever."""

import asyncio
import os
import socket
import stat
from itertools import pairwise
from pathlib import Path

import pytest

from sidecar.requests.middleware.receiver import MiddlewareReceiver
from sidecar.requests.middleware.senders import REASONS, SenderBook
from sidecar.requests.middleware.wire import begun
from sidecar.requests.observe.payload import CHAT
from sidecar.requests.record import RequestAcceptance
from tests.requests.requests_tools import Nothing, finished, packet


async def test_a_packets_events_are_delivered_in_full(receiver, sink, connect, eventually):
    connect().send(packet(begun(0, CHAT, 10.0), finished(0)))
    await eventually(lambda: sink.records)
    record = sink.records[0]
    assert (sink.starts[0].id, sink.starts[0].start) == (record.id, 10.0)
    assert (record.start, record.first_token, record.end) == (10.0, 10.5, 12.0)
    assert (record.path, record.model, record.temperature) == (CHAT, "lab", 0.7)
    assert (record.prompt_tokens, record.completion_tokens, record.stream_events) == (3, 24, 12)
    assert record.acceptance == RequestAcceptance(3, 9, 2, (1, 2))


async def test_gaps_in_the_numbering_are_counted_as_drops(receiver, sink, connect, eventually):
    one = connect()
    one.send(packet(finished(0), finished(1), first=500))  # from before this receiver's time
    one.send(packet(finished(2), first=509))
    one.send(packet(finished(3), first=510))
    await eventually(lambda: len(sink.records) == 4)
    assert sink.drops == {"gap": 7}


async def test_gaps_are_seen_across_connections(receiver, sink, connect, eventually):
    one = connect()
    one.send(packet(finished(0), first=0))
    await eventually(lambda: sink.records)
    one.close()
    connect().send(packet(finished(1), first=4))
    await eventually(lambda: len(sink.records) == 2)
    assert sink.drops == {"gap": 3}


async def test_what_a_sender_dropped_is_passed_on_under_known_names_only(receiver, sink, connect, eventually):
    connect().send(packet(dropped={"queue_full": 7, "reply_malformed": 2, "hello": 1, "gap": 5}))
    await eventually(lambda: sink.drops)
    assert sink.drops == {"queue_full": 7, "reply_malformed": 2, "other": 6}
    assert set(sink.drops) <= REASONS


async def test_several_senders_are_kept_apart(receiver, sink, connect, eventually):
    connect().send(packet(begun(0, CHAT, 1.0), finished(0), sender="a"))
    connect().send(packet(begun(0, CHAT, 1.0), finished(0), sender="b"))
    await eventually(lambda: len(sink.records) == 2)
    assert len({record.id for record in sink.records}) == 2
    assert not sink.drops


async def test_the_open_requests_of_a_sender_that_died_are_aborted(receiver, sink, connect, eventually):
    one = connect()
    one.send(packet(begun(0, CHAT, 1.0), begun(1, CHAT, 1.0), finished(0)))
    await eventually(lambda: len(sink.starts) == 2)
    one.close()
    await eventually(lambda: len(sink.records) == 2)
    record = sink.records[1]
    assert (record.id, record.outcome, record.model) == (sink.starts[1].id, "aborted", None)
    assert record.temperature != record.temperature
    assert sink.drops == {"sender_gone": 1}


async def test_a_sender_that_comes_back_in_time_loses_nothing(socket_path, sink, connect, eventually):
    loop = asyncio.get_running_loop()
    receiver = MiddlewareReceiver(socket_path, sink, grace=1.0)
    await receiver.start()
    one = connect()
    one.send(packet(begun(0, CHAT, 1.0)))
    await eventually(lambda: sink.starts)
    one.close()
    await eventually(lambda: not receiver._connections)
    given_up_at = loop.time() + 1.0
    two = connect()
    two.send(packet(begun(1, CHAT, 1.0), first=1))
    await eventually(lambda: len(sink.starts) == 2)
    await eventually(lambda: loop.time() > given_up_at)
    two.send(packet(finished(0), first=2))
    await eventually(lambda: sink.records)
    assert (sink.records[0].id, sink.records[0].outcome) == (sink.starts[0].id, "completed")
    assert not sink.drops
    await receiver.stop()


async def test_an_end_that_comes_after_all_is_no_second_one(receiver, sink, connect, eventually):
    one = connect()
    one.send(packet(begun(0, CHAT, 1.0)))
    await eventually(lambda: sink.starts)
    one.close()
    await eventually(lambda: sink.records)
    connect().send(packet(finished(0), finished(1), first=1))
    await eventually(lambda: len(sink.records) == 2)
    assert [record.id.rpartition("-")[2] for record in sink.records] == ["0", "1"]


async def test_stopping_gives_up_what_is_open_and_takes_what_has_arrived(socket_path, sink, connect):
    receiver = MiddlewareReceiver(socket_path, sink)
    await receiver.start()
    one = connect()
    for number in range(100):
        one.send(packet(begun(number, CHAT, 1.0), first=number))
    await receiver.stop()
    assert len(sink.starts) == len(sink.records) == 100
    assert sink.drops == {"sender_gone": 100}
    assert not os.path.exists(socket_path)  # noqa: PTH110 - a test may wait for it


async def test_an_end_whose_loss_the_sender_reports_is_given_up(receiver, sink, connect, eventually):
    connect().send(packet(begun(0, CHAT, 1.0), begun(1, CHAT, 1.0), oldest_open=1))
    await eventually(lambda: sink.records)
    assert [record.id for record in sink.records] == [sink.starts[0].id]


async def test_senders_over_the_bound_are_turned_away_and_counted(socket_path, sink, connect, eventually):
    receiver = MiddlewareReceiver(socket_path, sink, max_senders=2)
    await receiver.start()
    senders = [connect() for _ in range(3)]
    await eventually(lambda: sink.drops == {"too_many_senders": 1})
    senders[0].close()
    await eventually(lambda: len(receiver._connections) == 1)
    connect().send(packet(finished(0)))
    await eventually(lambda: sink.records)
    await receiver.stop()


def test_a_sender_can_not_open_requests_without_end():
    counted = []

    class Count(Nothing):
        def started(self, request):
            counted.append(request)

        def dropped(self, reason, count):
            dropped[reason] = dropped.get(reason, 0) + count

    dropped = {}
    book = SenderBook(Count(), lambda: 0.0)
    for first in range(0, 70_000, 500):
        book.take(memoryview(packet(*[begun(first + number, CHAT, 1.0) for number in range(500)], first=first)))
    assert len(counted) == 65_536
    assert dropped == {"too_many_open": 70_000 - 65_536}


def test_senders_without_end_are_forgotten_and_their_requests_given_up():
    ended = []

    class Count(Nothing):
        def finished(self, record):
            ended.append(record)

    book = SenderBook(Count(), lambda: 5.0)
    for number in range(1_000):
        book.take(memoryview(packet(begun(0, CHAT, 1.0), sender=f"s{number}")))
    assert len(book._senders) == 256
    assert len(ended) == 1_000 - 256
    assert ended[0].end == 5.0


async def test_any_user_of_the_shared_volume_may_connect_unless_told_otherwise(socket_path, sink):
    for mode in (0o666, 0o660):
        receiver = MiddlewareReceiver(socket_path, sink, **({} if mode == 0o666 else {"mode": mode}))
        await receiver.start()
        assert stat.S_IMODE(os.stat(socket_path).st_mode) == mode  # noqa: PTH116
        await receiver.stop()


async def test_the_folder_is_made(socket_path, sink, connect):
    receiver = MiddlewareReceiver(socket_path.replace("events.sock", "a/b/events.sock"), sink)
    await receiver.start()
    await receiver.stop()


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(socket_path, sink, connect, eventually):
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(socket_path)
    stale.close()
    receiver = MiddlewareReceiver(socket_path, sink)
    await receiver.start()
    with pytest.raises(OSError, match="in use"):
        await MiddlewareReceiver(socket_path, sink).start()
    connect().send(packet(finished(0)))
    await eventually(lambda: sink.records)
    await receiver.stop()


async def test_another_file_is_left_alone(socket_path, sink):
    Path(socket_path).write_text("precious")
    with pytest.raises(FileExistsError):
        await MiddlewareReceiver(socket_path, sink).start()
    assert Path(socket_path).read_text() == "precious"


async def test_a_successors_socket_is_not_removed(socket_path, sink):
    first, second = MiddlewareReceiver(socket_path, sink), MiddlewareReceiver(socket_path, sink)
    await first.start()
    os.unlink(socket_path)  # noqa: PTH108
    await second.start()
    await first.stop()
    assert os.path.exists(socket_path)  # noqa: PTH110
    await second.stop()


async def test_stopping_twice_or_before_the_start_is_nothing(socket_path, sink):
    receiver = MiddlewareReceiver(socket_path, sink)
    await receiver.stop()
    await receiver.start()
    await receiver.stop()
    await receiver.stop()


async def test_a_flood_leaves_the_event_loop_its_turns(receiver, sink, connect, no_blocking):
    """Many packets are taken a few at a time: other work goes on between them."""
    one, taken = connect(), [0]
    for number in range(150):
        one.send(packet(finished(number), first=number))
    while taken[-1] < 150:
        await asyncio.sleep(0)
        taken.append(len(sink.records))
    assert max(after - before for before, after in pairwise(taken)) < 50


async def test_a_socket_file_that_was_removed_is_put_back(tmp_path, sink, eventually):
    path = tmp_path / "events.sock"
    receiver = MiddlewareReceiver(path, sink, look_every=0.01)
    await receiver.start()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as before:
            before.connect(str(path))
            path.unlink()
            await eventually(path.exists)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as after:
                after.connect(str(path))
                after.send(packet(begun(0, CHAT, 1.0), finished(0), sender="new"))
                before.send(packet(begun(0, CHAT, 1.0), finished(0), sender="old"))
                await eventually(lambda: len(sink.records) == 2)
    finally:
        await receiver.stop()
    assert not path.exists()
