"""The receiver under load, and with senders that are slow, leave, or break off."""

import asyncio
from contextlib import suppress

import pytest

from tests.requests.traces.traces_tools import PROTOBUF, body, made, receiving, until

HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"


async def test_others_get_their_turn_while_a_large_export_is_decoded():
    """Counts the event loop's turns within one export: without slices there would be a handful."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with receiving() as running:
        data = body(*(made(n) for n in range(1, 7000)))
        counting = asyncio.create_task(count())
        await running.receiver._decode(data, PROTOBUF["Content-Type"])
        counting.cancel()
        assert turns >= 5


async def test_exports_beyond_the_limit_are_told_to_come_again():
    async with receiving(max_inflight=2) as running:
        slow = [await asyncio.open_connection(*running.address) for _ in range(2)]
        for _, writer in slow:
            writer.write(HEAD + b"Content-Length: 4\r\n\r\n")
        await until(lambda: running.receiver._inflight == 2)
        status, reply, _ = await running.post(body(made()))
        assert (status, reply["Retry-After"]) == (503, "1")
        assert running.sink.drops == {"overload": 1}
        for reader, writer in slow:
            writer.write(b"\x18\x00\x18\x00")
            assert b" 200 " in await reader.readline()
            writer.close()
        assert (await running.post(body(made())))[0] == 200
        assert len(running.sink.records) == 1


async def test_a_full_sink_is_told_as_such_and_loses_nothing():
    full = True
    async with receiving(is_full=lambda: full, retry_after_seconds=7) as running:
        status, reply, data = await running.post(body(made()))
        assert (status, reply["Retry-After"], data[1]) == (503, "7", 14)
        full = False
        assert (await running.post(body(made())))[0] == 200
        assert len(running.sink.records) == 1


async def test_a_sink_that_fills_while_the_body_comes_is_not_overrun():
    answers = iter([False, True])
    async with receiving(is_full=lambda: next(answers)) as running:
        assert (await running.post(body(made())))[0] == 503
        assert running.sink.records == []


async def test_a_body_that_stops_coming_is_given_up():
    async with receiving(body_seconds=0.05) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(HEAD + b"Content-Length: 100\r\n\r\nabc")
        assert b" 408 " in await reader.readline()
        assert running.sink.drops == {"timeout": 1}
        writer.close()
        assert running.receiver._inflight == 0


async def test_a_sender_that_leaves_within_its_body_frees_its_place():
    async with receiving(max_inflight=1) as running:
        _, writer = await asyncio.open_connection(*running.address)
        writer.write(HEAD + b"Content-Length: 100\r\n\r\nabc")
        await until(lambda: running.receiver._inflight == 1)
        writer.close()
        await until(lambda: running.receiver._inflight == 0)
        assert running.sink.drops == {"timeout": 1}
        assert (await running.post(body(made())))[0] == 200


async def test_broken_chunks_end_the_export():
    async with receiving(body_seconds=0.05, max_inflight=1) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await until(lambda: running.receiver._inflight == 1)
        writer.write(b"zz\r\n")
        assert (await reader.readline()).split()[1] in (b"400", b"408")  # aiohttp's parser in Python sees it at once
        writer.close()
        assert (await running.post(body(made())))[0] == 200


async def test_half_a_head_is_cut_off():
    async with receiving(header_seconds=0.05) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(HEAD)
        with suppress(ConnectionResetError):  # either end of a connection will do
            assert await reader.read() == b""
        writer.close()
        assert running.receiver.connections.timed_out == 1
        assert (await running.post(body(made())))[0] == 200


async def test_it_stops_while_exports_are_in_work():
    async with receiving() as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(HEAD + b"Content-Length: 100\r\n\r\nabc")
        await until(lambda: running.receiver._inflight == 1)
        await running.receiver.stop()
        await running.receiver.stop()
        await reader.read()
        writer.close()
        with pytest.raises(OSError, match="Connect"):
            await asyncio.open_connection(*running.address)
