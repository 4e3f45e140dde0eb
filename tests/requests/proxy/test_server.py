"""Draining: running exchanges may finish, idle connections are closed, late ones are cut; and the clock."""

import asyncio

import pytest

from tests.requests.proxy.proxy_doubles import Clock, until
from tests.requests.proxy.proxy_tools import GET, HOST, OK, answering, proxied


def gated(gate):
    async def script(connection):
        while True:
            await connection.request()
            await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
            await gate.wait()
            await connection.send(b"0\r\n\r\n")

    return script


async def test_drain_closes_idle_connections_and_lets_exchanges_finish():
    gate = asyncio.Event()
    async with proxied(gated(gate)) as (proxy, _):
        idle, busy = await proxy.client(), await proxy.client()
        await busy.send(GET)
        await busy.head()
        await until(lambda: proxy.stats.client_connections == 2)
        draining = asyncio.create_task(proxy.server.drain(60))
        assert await idle.closed() == b""
        with pytest.raises(ConnectionRefusedError):
            await proxy.client()
        assert not draining.done()
        gate.set()
        assert await busy.closed() == b"1\r\na\r\n0\r\n\r\n"
        assert await draining == 0
        assert proxy.observer.outcome == "completed"
        stats = proxy.stats
        assert (stats.client_connections, stats.upstream_connections) == (0, 0)


async def test_drain_cuts_late_exchanges_without_a_proper_end():
    gate = asyncio.Event()
    async with proxied(gated(gate)) as (proxy, server):
        client = await proxy.client()
        await client.send(GET)
        await client.head()
        assert await proxy.server.drain(0.01) == 1
        assert await client.closed() == b"1\r\na\r\n"
        assert proxy.observer.outcome == "refused"
        gate.set()
        await until(server.tasks[0].done)
        assert proxy.stats.upstream_connections == 0


async def test_response_that_begins_while_draining_says_close():
    gate = asyncio.Event()

    async def script(connection):
        await connection.request()
        await gate.wait()
        await connection.send(OK)

    async with proxied(script) as (proxy, server):
        client = await proxy.client()
        await client.send(GET)
        await until(lambda: server.received)
        draining = asyncio.create_task(proxy.server.drain(60))
        await asyncio.sleep(0)
        gate.set()
        reply = await client.reply()
        assert (reply.body, reply.header("Connection")) == (b"ok", "close")
        assert await draining == 0


async def test_kept_connection_may_carry_one_more_request_while_draining():
    """Its client was promised keep-alive, and may have sent already."""
    async with proxied(answering) as (proxy, _):
        client = await proxy.client()
        assert (await client.ask(GET)).header("Connection") is None
        draining = asyncio.create_task(proxy.server.drain(60))
        await asyncio.sleep(0)
        reply = await client.ask(GET)
        assert (reply.body, reply.header("Connection")) == (b"ok", "close")
        assert await draining == 0


async def test_request_whose_head_is_under_way_is_still_served():
    async with proxied(answering) as (proxy, _):
        client = await proxy.client()
        await client.send(GET[:20])
        (connection,) = proxy.server._clients
        await until(lambda: connection._head.begun)
        draining = asyncio.create_task(proxy.server.drain(60))
        await asyncio.sleep(0)
        assert (await client.ask(GET[20:])).body == b"ok"
        assert await draining == 0


async def test_drain_of_a_proxy_without_traffic():
    async with proxied(answering, pool_warm=2) as (proxy, _):
        await until(lambda: proxy.stats.upstream_idle == 2)
        assert await proxy.server.drain(60) == 0
        await until(lambda: proxy.stats.upstream_connections == 0)


async def test_body_under_way_at_the_cut_reaches_the_upstream_incomplete():
    async with proxied(lambda connection: connection.watch_close()) as (proxy, server):
        client = await proxy.client()
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nab")
        await until(lambda: server.received.endswith(b"ab"))
        assert await proxy.server.drain(0) == 1
        assert await client.closed() == b""
        await until(lambda: server.connections[0].closed)


async def test_clock_that_fails_once_does_not_end_all_deadlines():
    clock = Clock()
    broken = []

    def failing():
        if broken:
            raise broken.pop()
        return clock()

    loop = asyncio.get_running_loop()
    reported = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    async with proxied(answering, clock=failing, header_seconds=30) as (proxy, _):
        client = await proxy.client()
        await client.send(b"GET / HTTP/1.1\r\n")
        (connection,) = proxy.server._clients
        await until(lambda: connection._head.begun)
        broken.append(RuntimeError())
        await until(lambda: reported)
        await clock.advance(31)
        assert (await client.reply()).status == 408
