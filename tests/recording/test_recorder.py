"""The recorder by itself; tests/commands/test_record.py tests the command."""

import asyncio
import resource
import threading
from dataclasses import replace

from sidecar.recording.heard import Heard
from sidecar.recording.recording import read_heard
from sidecar.requests.messages import Dropped, Unreadable, read_packet
from tests.recording.recorder_tools import Log, lines_of, recorder
from tests.requests.packets import DONE, HELLO, TICK, packet

PACKET = read_packet(packet(hello=HELLO, tick=TICK, done=[DONE]))
REQUEST = Heard(1000.0, 1, request=PACKET.done[0])
WITHOUT_ADAPTER = replace(REQUEST, request=replace(PACKET.done[0], adapter=None))


async def test_what_was_heard_is_read_as_it_was_written_but_for_adapters(tmp_path):
    messages, told = (PACKET.hello, PACKET.tick, PACKET.done[0], Dropped("malformed"), Unreadable(7), None), []
    async with recorder(tmp_path) as one:
        sink = one.tee_requests(lambda *values: told.append(values))
        for message in messages:
            sink(1, message)
    assert told == [(1, message) for message in messages]
    assert one.requests == 1
    begun, *heard = read_heard(tmp_path, [])
    assert (begun.connection, begun.hello) == (0, None)
    assert [replace(one, at=0.0) for one in heard] == [
        Heard(0.0, 1, hello=PACKET.hello),
        Heard(0.0, 1, tick=replace(PACKET.tick, adapter=())),
        replace(WITHOUT_ADAPTER, at=0.0),
        Heard(0.0, 1),
    ]
    assert [one.at for one in heard] == sorted(one.at for one in heard)
    assert "tenant" not in str(lines_of(tmp_path, "plugin"))


async def test_a_disk_that_fails_leaves_what_was_written(tmp_path, eventually):
    log = Log()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with recorder(tmp_path, every=0.01, log=log) as one:
        one.heard(REQUEST)
        await eventually(lambda: one.written)
        resource.setrlimit(resource.RLIMIT_FSIZE, (one.written + 10, before[1]))
        try:
            one.heard(REQUEST)
            await eventually(lambda: log.lines)
            one.heard(REQUEST)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert log.lines == ["cannot write the recording; recording stops, the sidecar continues"]
    assert list(read_heard(tmp_path, []))[1:] == [WITHOUT_ADAPTER]


async def test_the_event_loop_never_encodes_nor_writes(tmp_path, eventually):
    threads = set()

    class Page(bytes):
        def decode(self, **options):
            threads.add(threading.current_thread())
            return super().decode(**options)

    async with recorder(tmp_path, every=0.005) as one:
        one.page(1.0, 2.0, Page(b"during\n"))
        await eventually(lambda: threads)
        one.page(2.0, 3.0, Page(b"at the end\n"))
    assert threading.main_thread() not in threads
    assert [line["text"] for line in lines_of(tmp_path, "scrapes")] == ["during\n", "at the end\n"]


async def test_what_waits_for_the_disk_is_bounded(tmp_path):
    rows = replace(PACKET.tick, temperature=PACKET.tick.temperature[:1] * 1023, prompt=(), steps=())
    async with recorder(tmp_path, every=3600) as one:
        for _ in range(7):
            one.page(1.0, 2.0, b"#" * 8 * 1024 * 1024)
        for _ in range(20):
            one.heard(Heard(1.0, 1, tick=rows))  # about 1 MiB each
        assert (one.scrapes, one.dropped) == (7, 20 - 7)
        one.heard(REQUEST)
        assert (one.requests, one.dropped) == (1, 20 - 7)
        one._stopped = True  # nothing of it is written
    assert asyncio.all_tasks() == {asyncio.current_task()}
