"""Receiving: strict about packets, tolerant of senders that come and go, and no request stays open forever."""

import asyncio
import os
import socket
import stat
from itertools import pairwise
from pathlib import Path

import pytest

from sidecar.requests.middleware.event_receiver import DROP_REASONS, EventReceiver
from sidecar.requests.observe.endpoint import CHAT
from sidecar.requests.record import RequestAcceptance
from tests.requests.requests_tools import begun, finished, packet


async def test_a_packets_events_are_delivered_in_full(receiver, sink, connect, eventually):
    connect().send(packet(begun(0, 10.0), finished(0)))
    await eventually(lambda: sink.records)
    record = sink.records[0]
    assert (sink.starts[0].id, sink.starts[0].start) == (record.id, 10.0)
    assert (record.start, record.first_token, record.end) == (10.0, 10.5, 12.0)
    assert (record.path, record.model, record.temperature) == (CHAT, "lab", 0.7)
    assert (record.prompt_tokens, record.completion_tokens, record.stream_events) == (3, 24, 12)
    assert record.acceptance == RequestAcceptance(3, 9, 2, (1, 2))


async def test_dropped_events_are_counted_under_known_names_only(receiver, sink, connect, eventually):
    connect().send(packet(dropped={"queue_full": 7, "reply_malformed": 2, "hello": 1, "sender_gone": 5}))
    await eventually(lambda: sink.drops)
    assert sink.drops == {"queue_full": 7, "reply_malformed": 2, "other": 6}
    assert set(sink.drops) <= DROP_REASONS


async def test_several_senders_are_kept_apart(receiver, sink, connect, eventually):
    connect().send(packet(begun(0), finished(0)))
    connect().send(packet(begun(0), finished(0)))
    await eventually(lambda: len(sink.records) == 2)
    assert len({record.id for record in sink.records}) == 2
    assert not sink.drops


async def test_the_open_requests_of_a_sender_that_died_are_aborted(receiver, sink, connect, eventually):
    one = connect()
    one.send(packet(begun(0), begun(1), finished(0)))
    await eventually(lambda: len(sink.starts) == 2)
    one.close()
    await eventually(lambda: len(sink.records) == 2)
    record = sink.records[1]
    assert (record.id, record.outcome, record.model) == (sink.starts[1].id, "aborted", None)
    assert record.temperature != record.temperature
    assert sink.drops == {"sender_gone": 1}


async def test_the_end_of_a_request_that_began_before_the_sidecar_is_delivered(receiver, sink, connect, eventually):
    connect().send(packet(finished(0), begun(1)))
    await eventually(lambda: sink.starts)
    assert [record.outcome for record in sink.records] == ["completed"]
    assert not sink.drops


async def test_a_second_start_of_a_running_request_is_refused(receiver, sink, connect, eventually):
    connect().send(packet(begun(0), begun(0), finished(0)))
    await eventually(lambda: sink.records)
    assert len(sink.starts) == 1
    assert sink.drops == {"contradictory": 1}


async def test_stopping_aborts_open_requests_and_delivers_what_has_arrived(socket_path, sink, connect):
    receiver = EventReceiver(socket_path, sink)
    await receiver.start()
    one = connect()
    for number in range(100):
        one.send(packet(begun(number)))
    await receiver.stop()
    assert len(sink.starts) == len(sink.records) == 100
    assert sink.drops == {"sender_gone": 100}
    assert not os.path.exists(socket_path)  # noqa: PTH110 - a test may wait for it


async def test_a_sender_over_the_bound_replaces_the_longest_silent_one(socket_path, sink, connect, eventually):
    receiver = EventReceiver(socket_path, sink, max_senders=2)
    await receiver.start()
    first, second = connect(), connect()
    first.send(packet(begun(0)))
    await eventually(lambda: len(sink.starts) == 1)
    second.send(packet(finished(1)))
    await eventually(lambda: len(sink.records) == 1)
    connect().send(packet(finished(2)))  # the second has nothing open, so it loses nothing
    await eventually(lambda: len(sink.records) == 2)
    first.send(packet(finished(0)))
    await eventually(lambda: len(sink.records) == 3)
    with pytest.raises(BrokenPipeError):
        second.send(packet(finished(3)))
    assert sink.drops == {"too_many_senders": 1}
    await receiver.stop()


async def test_silent_connections_do_not_block_senders_and_are_closed(socket_path, sink, connect, eventually):
    receiver = EventReceiver(socket_path, sink, first_packet_seconds=0.05)
    await receiver.start()
    for _ in range(16):
        silent = [connect() for _ in range(4)]
        await asyncio.sleep(0)
    one = connect()
    one.send(packet(begun(0)))
    await eventually(lambda: sink.drops["silent_sender"] + sink.drops["too_many_senders"] == 64)
    assert len(receiver._senders) == 1
    assert not silent[0].recv(1)
    one.send(packet(finished(0)))
    await eventually(lambda: sink.records)
    await receiver.stop()


@pytest.mark.parametrize("others", [0, 1])
async def test_only_the_configured_user_is_heard(others, socket_path, sink, connect, eventually):
    receiver = EventReceiver(socket_path, sink, uid=os.getuid() + others)
    await receiver.start()
    connect().send(packet(finished(0)))
    await eventually(lambda: sink.records or sink.drops)
    assert sink.drops == ({"wrong_user": 1} if others else {})
    assert len(sink.records) == 1 - others
    await receiver.stop()


async def test_a_forged_count_of_drops_is_clamped(receiver, sink, connect, eventually):
    connect().send(packet(dropped={"queue_full": 2**53, "hello": 2**53}))
    await eventually(lambda: sink.drops)
    assert sink.drops == {"queue_full": 100_000, "other": 100_000}


async def test_the_bound_on_open_requests_is_over_all_senders_and_comes_back(
    receiver, sink, connect, eventually, monkeypatch
):
    monkeypatch.setattr("sidecar.requests.middleware.event_receiver._MOST_OPEN", 15)
    first, second = connect(), connect()
    first.send(packet(*map(begun, range(10))))
    await eventually(lambda: len(sink.starts) == 10)
    second.send(packet(*map(begun, range(10))))
    await eventually(lambda: sink.drops == {"too_many_open": 5})
    first.close()
    await eventually(lambda: len(sink.records) == 10)
    second.send(packet(*map(begun, range(10, 20))))
    await eventually(lambda: len(sink.starts) == 25)
    assert sink.drops["too_many_open"] == 5


async def test_the_requests_of_a_sender_that_died_end_a_few_at_a_time(receiver, sink, connect, eventually):
    one, taken = connect(), [0]
    for number in range(0, 2000, 20):
        one.send(packet(*map(begun, range(number, number + 20))))
    await eventually(lambda: len(sink.starts) == 2000)
    one.close()
    while taken[-1] < 2000:
        await asyncio.sleep(0)
        taken.append(len(sink.records))
    assert max(after - before for before, after in pairwise(taken)) <= 320


async def test_the_number_of_open_requests_is_bounded(receiver, sink, connect, eventually, monkeypatch):
    monkeypatch.setattr("sidecar.requests.middleware.event_receiver._MOST_OPEN", 15)
    connect().send(packet(*map(begun, range(20))))
    await eventually(lambda: sink.drops == {"too_many_open": 5})
    assert len(sink.starts) == 15


async def test_any_user_of_the_shared_volume_may_connect(receiver, socket_path):
    assert stat.S_IMODE(os.stat(socket_path).st_mode) == 0o666  # noqa: PTH116


async def test_the_folder_is_made(socket_path, sink, connect):
    receiver = EventReceiver(socket_path.replace("events.sock", "a/b/events.sock"), sink)
    await receiver.start()
    await receiver.stop()


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(socket_path, sink, connect, eventually):
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(socket_path)
    stale.close()
    receiver = EventReceiver(socket_path, sink)
    await receiver.start()
    with pytest.raises(OSError, match="in use"):
        await EventReceiver(socket_path, sink).start()
    connect().send(packet(finished(0)))
    await eventually(lambda: sink.records)
    await receiver.stop()


async def test_another_file_is_left_alone(socket_path, sink):
    Path(socket_path).write_text("precious")
    with pytest.raises(FileExistsError):
        await EventReceiver(socket_path, sink).start()
    assert Path(socket_path).read_text() == "precious"


async def test_a_successors_socket_is_not_removed(socket_path, sink):
    first, second = EventReceiver(socket_path, sink), EventReceiver(socket_path, sink)
    await first.start()
    os.unlink(socket_path)  # noqa: PTH108
    await second.start()
    await first.stop()
    assert os.path.exists(socket_path)  # noqa: PTH110
    await second.stop()


async def test_stopping_twice_or_before_the_start_does_nothing(socket_path, sink):
    receiver = EventReceiver(socket_path, sink)
    await receiver.stop()
    await receiver.start()
    await receiver.stop()
    await receiver.stop()


async def test_a_flood_does_not_starve_the_event_loop(receiver, sink, connect, no_blocking):
    """However many send, the packets of all are taken a few at a time, in turns: other work goes on between them."""
    senders, taken = [connect() for _ in range(20)], [0]
    for sender in senders:
        for _ in range(15):
            sender.send(packet(*map(finished, range(20))))
    while taken[-1] < 6000:
        await asyncio.sleep(0)
        taken.append(len(sink.records))
    assert max(after - before for before, after in pairwise(taken)) <= 320
    halfway = {record.id.partition("-")[0] for record in sink.records[:3000]}
    assert len(halfway) == 20


async def test_a_socket_file_that_was_removed_is_put_back(tmp_path, sink, eventually):
    path = tmp_path / "events.sock"
    receiver = EventReceiver(path, sink, look_every=0.01)
    await receiver.start()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as before:
            before.connect(str(path))
            path.unlink()
            await eventually(path.exists)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as after:
                after.connect(str(path))
                after.send(packet(begun(0), finished(0)))
                before.send(packet(begun(0), finished(0)))
                await eventually(lambda: len(sink.records) == 2)
    finally:
        await receiver.stop()
    assert not path.exists()
