"""The receiver under load, and with senders that are slow, leave, or break off."""

import asyncio
import gzip
from contextlib import suppress

import pytest

from tests.requests.traces.spans import GZIP, PROTOBUF, body, made, receiving, until

HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"


async def test_others_get_their_turn_while_a_large_export_is_decoded(no_blocking):
    async with receiving() as running:
        data = gzip.compress(body(*(made(n) for n in range(1, 5000))))
        slow = asyncio.create_task(running.post(data, PROTOBUF | GZIP))
        await until(running.receiver._turn.locked)
        turns = 0
        while not running.sink.records:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5  # decoded on the event loop, it would be one
        assert (await slow)[0] == 200


async def test_exports_beyond_the_limit_are_asked_to_retry():
    async with receiving(max_inflight=2) as running:
        async with running.receiver._turn:  # as if a large one were decoded
            waiting = [asyncio.create_task(running.post(body(made(n)))) for n in (1, 2)]
            await until(lambda: running.receiver._inflight == 2)
            status, reply, _ = await running.post(body(made(3)))
            assert (status, reply["Retry-After"]) == (503, "1")
            assert running.sink.drops == {"overload": 1}
        assert [(await one)[0] for one in waiting] == [200, 200]
        assert (await running.post(body(made(3))))[0] == 200
        assert len(running.sink.records) == 3


async def test_slow_bodies_do_not_block_other_exports():
    async with receiving(max_inflight=2) as running:
        slow = [await asyncio.open_connection(*running.address) for _ in range(12)]
        for _, writer in slow:
            writer.write(HEAD + b"Content-Length: 4\r\n\r\n")
        await until(lambda: len(running.receiver._bodies._sizes) == 12)
        assert (await running.post(body(made())))[0] == 200
        for reader, writer in slow:
            writer.write(b"\x18\x00\x18\x00")
            assert b" 200 " in await reader.readline()
            writer.close()
        assert not running.sink.drops


async def test_the_longest_arriving_body_is_refused_when_memory_is_short():
    async with receiving(body_bytes=1000) as running:
        slow = []
        for held in range(1, 5):
            slow.append(await asyncio.open_connection(*running.address))
            slow[-1][1].write(HEAD + b"Content-Length: 1000\r\n\r\n" + bytes(999))
            await until(lambda held=held: sum(running.receiver._bodies._sizes.values()) == 999 * held)
        assert (await running.post(body(made())))[0] == 200
        assert b" 503 " in await slow[0][0].readline()
        assert running.sink.drops == {"overload": 1}
        for _, writer in slow:
            writer.close()


async def test_a_body_that_stops_arriving_times_out():
    async with receiving(body_seconds=0.05) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(HEAD + b"Content-Length: 100\r\n\r\nabc")
        assert b" 408 " in await reader.readline()
        assert running.sink.drops == {"timeout": 1}
        writer.close()
        assert not running.receiver._bodies._sizes


async def test_a_sender_that_leaves_within_its_body_frees_its_place():
    async with receiving(max_inflight=1) as running:
        _, writer = await asyncio.open_connection(*running.address)
        writer.write(HEAD + b"Content-Length: 100\r\n\r\nabc")
        await until(lambda: running.receiver._bodies._sizes)
        writer.close()
        await until(lambda: running.receiver._bodies._sizes == {})
        assert running.sink.drops == {"timeout": 1}
        assert (await running.post(body(made())))[0] == 200


async def test_broken_chunks_end_the_export():
    async with receiving(body_seconds=0.05, max_inflight=1) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await until(lambda: running.receiver._bodies._sizes)
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
        assert (await running.post(body(made())))[0] == 200


async def test_it_stops_while_exports_arrive():
    async with receiving() as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(HEAD + b"Content-Length: 100\r\n\r\nabc")
        await until(lambda: running.receiver._bodies._sizes)
        await running.receiver.stop()
        await running.receiver.stop()
        await reader.read()
        writer.close()
        with pytest.raises(OSError, match="Connect"):
            await asyncio.open_connection(*running.address)
