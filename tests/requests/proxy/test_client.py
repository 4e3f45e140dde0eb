"""Everything that a client can send has a limit: bytes, times and connections."""

import asyncio
import json
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET

import pytest

from tests.requests.proxy.proxy_doubles import Clock, until
from tests.requests.proxy.proxy_tools import GET, HOST, OK, Proxy, answer, answering, proxied, raw_server

POST = b"POST / HTTP/1.1\r\n" + HOST


async def test_half_a_head_gets_408_and_the_connection_is_closed():
    async with proxied(answering, header_seconds=0.05) as (proxy, server):
        client = await proxy.client()
        reply = await client.ask(b"GET / HTTP/1.1\r\nHo")
        assert (reply.status, reply.header("Connection")) == (408, "close")
        client.writer.write_eof()
        assert await client.closed() == b""
        assert server.connections == []
        assert proxy.stats.refused["headers_timeout"] == 1


async def test_head_deadline_does_not_start_anew_with_each_piece():
    clock = Clock()
    async with proxied(answering, clock=clock, header_seconds=30) as (proxy, _):
        client = await proxy.client()
        await client.send(b"GET / HTTP/1.1\r\n")
        (connection,) = proxy.server._clients
        await until(lambda: connection._head.begun)
        await clock.advance(20)
        await client.send(HOST)
        await until(lambda: HOST in connection._head._held)
        assert proxy.stats.refused["headers_timeout"] == 0
        await clock.advance(11)
        assert (await client.reply()).status == 408


@pytest.mark.parametrize("used", [False, True])
async def test_silent_connection_is_closed_without_a_word(used):
    async with proxied(answering, idle_seconds=0.05, header_seconds=60) as (proxy, _):
        client = await proxy.client()
        if used:
            await client.ask(GET)
        assert await client.closed() == b""
        assert set(proxy.stats.refused.values()) == {0}


async def test_body_that_stops_arriving_gets_408_and_the_upstream_is_closed():
    async with proxied(lambda connection: connection.watch_close(), body_idle_seconds=0.05) as (proxy, server):
        client = await proxy.client()
        reply = await client.ask(POST + b"Content-Length: 5\r\n\r\nabc")
        assert reply.status == 408
        await until(lambda: server.connections[0].closed)
        assert proxy.observer.outcome == "refused"
        assert proxy.stats.refused["body_timeout"] == 1


async def test_body_deadline_starts_anew_with_each_piece():
    clock = Clock()
    options = {"body_idle_seconds": 60, "min_body_rate": 0.01}
    async with proxied(lambda connection: connection.watch_close(), clock=clock, **options) as (proxy, server):
        client = await proxy.client()
        await client.send(POST + b"Content-Length: 4\r\n\r\n")
        for piece in (b"a", b"b", b"c"):
            await client.send(piece)
            await until(lambda piece=piece: server.received.endswith(piece))
            await clock.advance(50)
        assert proxy.stats.refused["body_timeout"] == 0
        await clock.advance(11)
        assert (await client.reply()).status == 408


async def test_body_must_come_at_a_minimum_rate_while_it_is_the_clients_turn():
    clock = Clock()
    options = {"body_idle_seconds": 60, "min_body_rate": 10}
    async with proxied(lambda connection: connection.watch_close(), clock=clock, **options) as (proxy, server):
        client = await proxy.client()
        await client.send(POST + b"Content-Length: 100000\r\n\r\n")
        await until(lambda: proxy.stats.exchanges == 1)
        for number in range(5):
            await client.send(b"%03d" % number + b"x" * 197)  # 20 seconds' worth of the rate, every 24 seconds
            await until(lambda number=number: b"%03d" % number in server.received)
            await clock.advance(24)
        assert proxy.stats.refused["body_timeout"] == 0
        for number in range(5, 8):
            await client.send(b"%03d" % number)
            await until(lambda number=number: b"%03d" % number in server.received)
            await clock.advance(20)
        assert (await client.reply()).status == 408
        assert proxy.stats.refused["body_timeout"] == 1


async def test_response_may_take_longer_than_any_deadline():
    clock, release = Clock(), asyncio.Event()

    async def script(connection):
        await connection.request()
        await release.wait()
        await connection.send(OK)

    async with proxied(script, clock=clock) as (proxy, server):
        client = await proxy.client()
        await client.send(POST + b"Content-Length: 3\r\n\r\nabc")
        await until(lambda: server.received.endswith(b"abc"))
        await clock.advance(100_000)
        release.set()
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("whole", [True, False])
async def test_head_over_its_limit_gets_431(whole):
    async with proxied(answering, max_header_bytes=1000) as (proxy, server):
        client = await proxy.client()
        request = b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 1000 + (b"\r\n\r\n" if whole else b"")
        reply = await client.ask(request)
        assert (reply.status, json.loads(reply.body)["error"]["type"]) == (431, "invalid_request_error")
        assert server.connections == []
        assert proxy.stats.refused["headers_too_large"] == 1


async def test_head_of_exactly_its_limit_passes():
    head = b"GET / HTTP/1.1\r\n" + HOST + b"A: "
    request = head + b"x" * (1000 - len(head) - 4) + b"\r\n\r\n"
    async with proxied(answering, max_header_bytes=1000) as (proxy, server):
        client = await proxy.client()
        assert (await client.ask(request + GET)).status == 200
        assert (await client.reply()).status == 200
        assert server.received == request + GET


async def test_announced_body_over_its_limit_gets_413_and_never_reaches_the_upstream():
    async with proxied(answering, max_body_bytes=10) as (proxy, server):
        client = await proxy.client()
        assert (await client.ask(POST + b"Content-Length: 10\r\n\r\n0123456789")).status == 200
        reply = await client.ask(POST + b"Content-Length: 11\r\n\r\n0123456789a")
        assert (reply.status, reply.header("Connection")) == (413, "close")
        assert server.received.endswith(b"0123456789")
        assert [observer.outcome for observer in proxy.observers] == ["completed", "refused"]
        assert proxy.stats.refused["body_too_large"] == 1


async def test_chunked_body_over_its_limit_gets_413_and_never_completes_upstream():
    async with proxied(lambda connection: connection.watch_close(), max_body_bytes=10) as (proxy, server):
        client = await proxy.client()
        await client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n8\r\n01234567\r\n")
        await until(lambda: b"01234567" in server.received)
        assert (await client.ask(b"3\r\n89a\r\n0\r\n\r\n")).status == 413
        await until(lambda: server.connections[0].closed)
        assert not server.received.endswith(b"0\r\n\r\n")


async def test_connections_over_the_limit_get_503_and_room_is_found_again():
    async with proxied(answering, max_connections=2) as (proxy, _):
        first, second = [await proxy.client() for _ in range(2)]
        for client in (first, second):
            await client.send(GET[:-2])  # not idle, so it keeps its place
        await until(lambda: not proxy.server._idle)
        third = await proxy.client()
        reply = await third.reply()
        assert (reply.status, reply.header("Connection")) == (503, "close")
        assert json.loads(reply.body)["error"]["type"] == "server_error"
        assert proxy.stats.refused["too_many_connections"] == 1
        assert (await first.ask(b"\r\n")).status == (await second.ask(b"\r\n")).status == 200
        third.kill()
        await until(lambda: proxy.stats.client_connections == 2)
        assert (await (await proxy.client()).ask(GET)).status == 200


async def test_longest_idle_client_gives_way_and_busy_ones_stay():
    async with proxied(answering, max_connections=3) as (proxy, _):
        busy, used, fresh = [await proxy.client() for _ in range(3)]
        await busy.send(GET[:-2])
        await used.ask(GET)
        await until(lambda: len(proxy.server._idle) == 2)
        assert (await (await proxy.client()).ask(GET)).status == 200
        assert await fresh.closed() == b""  # idle for longer than the one that has just had its answer
        assert (await (await proxy.client()).ask(GET)).status == 200
        assert await used.closed() == b""
        assert (await busy.ask(b"\r\n")).status == 200
        assert proxy.stats.refused["evicted"] == 2
        assert proxy.stats.refused["too_many_connections"] == 0
        assert proxy.stats.client_connections == 3


async def test_a_client_that_still_reads_its_response_does_not_give_way():
    body = bytes(range(256)) * 500
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with proxied(answer(reply), max_connections=2) as (proxy, _):
        slow = await proxy.client(limit=1024)
        slow.writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
        await until(lambda: proxy.server._clients)
        (connection,) = proxy.server._clients
        connection._transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, 16_384)
        await slow.send(GET)
        await slow.head()
        read = b""
        while connection not in proxy.server._idle:
            read += await slow.reader.read(2048)
            await asyncio.sleep(0)
        assert connection._transport.get_write_buffer_size()
        idle = await proxy.client()
        await until(lambda: len(proxy.server._idle) == 2)
        newcomer = await proxy.client()
        assert await idle.closed() == b""
        await newcomer.send(GET[:-2])
        await until(lambda: len(proxy.server._idle) == 1)
        assert (await (await proxy.client()).reply()).status == 503
        assert read + await slow.reader.readexactly(len(body) - len(read)) == body
        assert (await newcomer.ask(b"\r\n")).body == body
        assert proxy.stats.refused["evicted"] == 1


async def test_empty_lines_do_not_postpone_a_deadline():
    clock = Clock()
    async with proxied(answering, clock=clock, idle_seconds=75) as (proxy, _):
        client = await proxy.client()
        await until(lambda: proxy.server._clients)
        await clock.advance(70)
        await client.send(b"\r\n")
        (connection,) = proxy.server._clients
        await until(lambda: connection._head._skipped)
        await clock.advance(6)
        assert await client.closed() == b""


async def test_refused_clients_are_bounded_too():
    async with proxied(answering, max_connections=2) as (proxy, _):
        for _ in range(2):
            await (await proxy.client()).send(GET[:-2])
        await until(lambda: proxy.stats.client_connections == 2 and not proxy.server._idle)
        for _ in range(10):
            await proxy.client()
        await until(lambda: proxy.stats.refused["too_many_connections"] == 10)
        await until(lambda: proxy.stats.client_connections <= 4)


async def test_client_that_never_reads_its_refusal_is_cut():
    async with proxied(answering, linger_seconds=0.02) as (proxy, _):
        client = await proxy.client()
        await client.send(b"nonsense\r\n\r\n")
        await until(lambda: proxy.stats.refused["bad_request"] == 1)
        await until(lambda: proxy.stats.client_connections == 0)


async def endless(connection):
    """A script: a stream for as long as it is taken."""
    await connection.request()
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
    try:
        while True:
            await connection.send(bytes(100_000))
    finally:
        connection.closed = True


async def test_client_that_takes_nothing_of_its_response_is_cut_and_frees_the_upstream():
    clock = Clock()
    async with proxied(endless, clock=clock, send_idle_seconds=60) as (proxy, server):
        client = await proxy.client(limit=1000)
        await client.send(GET)
        await until(lambda: proxy.server._clients)
        (connection,) = proxy.server._clients
        await until(lambda: not connection.is_writable())
        await clock.advance(0)
        await clock.advance(59)
        assert connection.busy
        await clock.advance(2)
        await until(lambda: server.connections[0].closed)
        assert proxy.observer.outcome == "client_gone"
        assert proxy.stats.refused["send_timeout"] == 1
        await until(lambda: proxy.stats.client_connections == 0)


async def test_client_that_takes_its_response_slowly_is_not_cut():
    clock = Clock()
    async with proxied(endless, clock=clock, send_idle_seconds=60) as (proxy, _):
        client = await proxy.client(limit=1000)
        await client.send(GET)
        await until(lambda: proxy.server._clients)
        (connection,) = proxy.server._clients
        for _ in range(4):
            await until(lambda: not connection.is_writable())
            await clock.advance(40)
            await client.reader.readexactly(16_000_000)  # more than the kernel holds, so that the proxy's bytes move
        assert connection.busy
        assert proxy.stats.refused["send_timeout"] == 0


async def test_pipelined_head_larger_than_the_buffer_is_read_to_its_end():
    first = asyncio.Event()

    async def script(connection):
        await connection.reader.readuntil(b"\r\n\r\n")
        await first.wait()
        await connection.send(OK)
        await answering(connection)

    options = {"max_header_bytes": 500_000, "buffer_bytes": 65_536}
    async with raw_server(script, limit=1_000_000) as server, Proxy(server.port, options) as proxy:
        client = await proxy.client()
        await client.send(GET)
        await until(lambda: proxy.stats.exchanges == 1)
        sending = asyncio.create_task(client.send(GET[:-2] + b"X: " + b"x" * 400_000 + b"\r\n\r\n"))
        (connection,) = proxy.server._clients
        await until(lambda: len(connection._held) > 65_536)
        first.set()
        async with asyncio.timeout(120):
            await sending
            assert [(await client.reply()).status for _ in range(2)] == [200, 200]
