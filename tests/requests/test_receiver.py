"""Receiving: strict about packets, tolerant of engines that come and go, and fair."""

import asyncio
import errno
import os
import stat
from itertools import pairwise

import pytest
from blockbuster import blockbuster_ctx
from structlog.testing import capture_logs

from sidecar.requests import plugin
from sidecar.requests import receiver as receiver_module
from sidecar.requests.messages import Hello, ReportPart, Unreadable
from tests.requests.conftest import descriptors
from tests.requests.packets import FINISHED, HELLO, REPORT, finishing, packet


async def test_a_packets_parts_are_delivered_in_order(receiver, sink, connect, eventually):
    """A report means nothing before the hello that says whose it is."""
    connect().send(packet(report={**REPORT, **finishing(FINISHED, FINISHED)}, hello=HELLO))
    await eventually(lambda: len(sink.calls) == 2)
    assert sink.calls == [(Hello, 1), (ReportPart, 1)]
    assert (sink.hellos[0].model, sink.reports[0].end.steps, sink.requests[1].adapter) == (
        "m",
        40,
        "tenant",
    )


@pytest.mark.parametrize(
    "refused", [b"?", packet(report=finishing({**FINISHED, "temperature": -1})), b" " * 131_073]
)
async def test_a_malformed_packet_ends_its_connection_alone(
    refused, receiver, sink, connect, eventually
):
    """Other engines' plug-ins are not to suffer from it."""
    good, bad = connect(), connect()
    for connection in (good, bad):
        connection.send(packet(hello=HELLO, report=finishing(FINISHED)))
    await eventually(lambda: len(sink.requests) == 2)
    bad.send(refused)
    await eventually(lambda: (None, 2) in sink.calls)
    good.send(packet(report=finishing(FINISHED)))
    await eventually(lambda: len(sink.requests) == 3)
    assert sink.drops == {"malformed": 1}


async def test_a_first_packet_without_a_hello_is_malformed(receiver, sink, connect, eventually):
    """Nobody knows whose report it would be."""
    connect().send(packet(report=REPORT))
    await eventually(lambda: sink.drops)
    assert sink.drops == {"malformed": 1}
    assert not sink.calls


async def test_a_packet_of_the_largest_size_is_read(receiver, sink, connect, eventually):
    """The plug-in counts on it."""
    text = packet(hello=HELLO)
    connect().send(text + b" " * (plugin.MAX_BYTES - len(text)))
    await eventually(lambda: sink.hellos)
    assert not sink.drops


async def test_a_sender_of_another_version_is_reported_until_it_leaves(
    receiver, sink, connect, eventually
):
    """The page says to regenerate the plug-in as long as it is there."""
    connection = connect()
    connection.send(b'{"v": 5, "hello": {"plugin": "1.4"}}')
    await eventually(lambda: sink.calls)
    connection.close()
    await eventually(lambda: (None, 1) in sink.calls)
    assert sink.calls == [(Unreadable(5), 1), (None, 1)]
    assert not sink.drops


async def test_stopping_disconnects_without_reporting_an_end_and_leaves_no_task(
    receiving, sink, connect, eventually
):
    """The engines have not left: the sidecar has."""
    before = asyncio.all_tasks()
    async with receiving():
        connection = connect()
        connection.send(packet(hello=HELLO))
        await eventually(lambda: sink.hellos)
        connect()  # while it stops
    assert sink.calls == [(Hello, 1)]
    with pytest.raises(BrokenPipeError):
        connection.send(packet(report=finishing(FINISHED)))
    assert asyncio.all_tasks() == before


async def test_a_connection_over_the_bound_replaces_the_longest_silent_one(
    receiving, sink, connect, eventually
):
    """An engine that reports is never the one that has to go."""
    async with receiving(max_connections=2):
        first, second = connect(), connect()
        for number, connection in enumerate((first, second, first), 1):
            connection.send(packet(hello=HELLO))
            await eventually(lambda number=number: len(sink.hellos) == number)
        connect().send(packet(hello=HELLO))
        await eventually(lambda: len(sink.hellos) == 4)
        with pytest.raises(BrokenPipeError):
            second.send(packet(report=REPORT))
        first.send(packet(report=REPORT))
        await eventually(lambda: sink.reports)
    assert sink.drops == {"too_many_connections": 1}


async def test_a_replaced_connection_is_not_read_to_its_end(receiving, sink, connect, eventually):
    """Its packets would come after those of the one that took its place."""
    async with receiving(max_connections=1):
        first, second = connect(), connect()
        for _ in range(20):
            first.send(packet(hello=HELLO))
        second.send(packet(hello={**HELLO, "engine": 1}))
        await eventually(lambda: (None, 1) in sink.calls)
        assert len(sink.hellos) < 10


async def test_silent_connections_keep_no_engine_out(receiving, sink, connect, eventually):
    """Any process on the machine may open them."""
    async with receiving(max_connections=4):
        silent = [connect() for _ in range(16)]
        engine = connect()
        engine.send(packet(hello=HELLO))
        await eventually(lambda: sink.hellos)
        silent += [connect() for _ in range(16)]
        await eventually(lambda: sink.drops["too_many_connections"] == 33 - 4)
        engine.send(packet(report=finishing(FINISHED)))
        await eventually(lambda: sink.requests)


async def test_a_flood_does_not_starve_the_event_loop(receiver, sink, connect, eventually):
    """However much is sent, one packet of each connection is taken at a time.

    Other work goes on between them.
    """
    senders, taken = [connect() for _ in range(20)], [0]
    for sender in senders:
        sender.send(packet(hello=HELLO))
    await eventually(lambda: len(sink.hellos) == 20)
    for number, sender in enumerate(senders):
        for _ in range(15):
            sender.send(packet(report=finishing(*[{**FINISHED, "drafts": number}] * 5)))
    with blockbuster_ctx():
        while taken[-1] < 1500:
            await asyncio.sleep(0)
            taken.append(len(sink.requests))
    assert max(after - before for before, after in pairwise(taken)) <= 100
    assert len({request.drafts for request in sink.requests[:200]}) == 20


async def test_without_descriptors_engines_wait_and_are_accepted_later(
    receiver, sink, connect, eventually
):
    """One line in the log, not one for each try."""
    engines = [connect() for _ in range(3)]
    with descriptors(free=0), capture_logs() as logs:
        await eventually(lambda: sink.drops["no_descriptors"] >= 2)
    assert [line["event"] for line in logs] == ["cannot accept connections"]
    for engine in engines:
        engine.send(packet(hello=HELLO))
    await eventually(lambda: len(sink.hellos) == 3)


async def test_any_user_of_the_shared_volume_may_connect(receiver, socket_path):
    """vLLM's container often runs as another user."""
    assert stat.S_IMODE(socket_path.stat().st_mode) == 0o666


async def test_a_live_sidecars_socket_is_left_alone_until_it_ends(
    receiving, sink, connect, socket_path, eventually
):
    """As when a sidecar is replaced while the old one still ends."""
    first, second = receiving(), receiving(retry=0.01)
    await first.__aenter__()
    inode = socket_path.stat().st_ino
    with capture_logs() as logs:
        await second.__aenter__()
        assert second.problem == os.strerror(errno.EADDRINUSE)
        assert socket_path.stat().st_ino == inode
        await first.__aexit__(None, None, None)
        await eventually(lambda: not second.problem)
    assert [line["log_level"] for line in logs] == ["warning", "info"]
    connect().send(packet(hello=HELLO))
    await eventually(lambda: sink.hellos)
    await second.__aexit__(None, None, None)


async def test_a_file_at_the_sockets_path_is_left_alone(receiving, socket_path):
    """A wrong setting must not delete a user's file."""
    socket_path.write_text("precious")
    async with receiving() as receiver:
        assert receiver.problem == os.strerror(errno.EADDRINUSE)
    assert socket_path.read_text() == "precious"


async def test_a_folder_that_cannot_be_made_is_logged_once_and_retried(
    receiving, folder, sink, eventually, monkeypatch
):
    """A volume may be mounted late."""
    (folder / "file").write_text("")
    tries, listening = [], receiver_module._listening
    monkeypatch.setattr(
        receiver_module, "_listening", lambda path: tries.append(path) or listening(path)
    )
    with capture_logs() as logs:
        async with receiving(folder / "file" / "plugin.sock", retry=0.01) as receiver:
            assert receiver.problem == os.strerror(errno.EEXIST)
            await eventually(lambda: len(tries) >= 3)
            (folder / "file").unlink()
            await eventually(lambda: not receiver.problem)
            assert (folder / "file" / "plugin.sock").is_socket()
    assert [line["log_level"] for line in logs] == ["warning", "info"]
    assert "SPECDEC_PLUGIN__SOCKET" in logs[0]["event"]
