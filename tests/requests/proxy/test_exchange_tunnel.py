"""Websockets: a tunnel after the upstream's 101, and nothing of the kind otherwise."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from tests.requests.proxy.proxy_doubles import Clock, until
from tests.requests.proxy.proxy_tools import GET, HOST, Proxy, answer, answering, proxied

UPGRADE = (
    b"GET /v1/realtime HTTP/1.1\r\n" + HOST + b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n"
)


async def echo(connection):
    """A tunnel's other end: greets, and sends back what comes."""
    connection.received += await connection.reader.readuntil(b"\r\n\r\n")
    await connection.send(SWITCH + b"hello")
    while data := await connection.read():
        await connection.send(data)


async def test_tunnel_passes_raw_bytes_both_ways():
    async with proxied(echo) as (proxy, server):
        client = await proxy.client()
        await client.send(UPGRADE + b"early")  # before the 101: held, then passed on
        reply = await client.reply()
        assert (reply.status, reply.header("Connection"), reply.header("Upgrade")) == (101, "Upgrade", "websocket")
        assert await client.reader.readexactly(10) == b"helloearly"
        await client.send(b"\x81\x00GET / HTTP/1.1\r\n\r\n")
        assert await client.reader.readexactly(20) == b"\x81\x00GET / HTTP/1.1\r\n\r\n"
        assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" in server.received
        client.writer.close()
        await until(lambda: server.connections[0].closed)
        assert proxy.observer.status == 101
        assert proxy.observer.outcome == "completed"
        assert proxy.observer.response == b""


async def test_upstream_that_ends_a_tunnel_ends_it_for_the_client():
    async def script(connection):
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(SWITCH + b"bye")

    async with proxied(script) as (proxy, _):
        client = await proxy.client()
        await client.send(UPGRADE)
        await client.head()
        assert await client.closed() == b"bye"
        await until(lambda: proxy.observer.outcome == "completed")


async def test_tunnel_outlives_every_deadline_and_ends_in_a_drain():
    clock = Clock()
    async with proxied(echo, clock=clock) as (proxy, _):
        client = await proxy.client()
        await client.send(UPGRADE)
        await client.head()
        await clock.advance(100_000)
        await client.send(b"!")
        assert await client.reader.readexactly(6) == b"hello!"
        assert await proxy.server.drain(0) == 1
        assert await client.closed() == b""


async def test_upstream_may_decline_the_upgrade():
    async with proxied(answering) as (proxy, _):
        client = await proxy.client()
        assert (await client.ask(UPGRADE)).body == b"ok"
        assert (await client.ask(GET)).body == b"ok"


@pytest.mark.parametrize(
    "headers",
    [
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n",
        b"Upgrade: websocket\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n",
    ],
)
async def test_other_upgrades_are_left_out_and_a_101_to_them_is_invalid(headers):
    async with proxied(answer(SWITCH)) as (proxy, server):
        client = await proxy.client()
        reply = await client.ask(b"GET / HTTP/1.1\r\n" + HOST + headers + b"\r\nx")
        assert reply.status == 502
        assert b"pgrade" not in server.received
        assert b"HTTP2" not in server.received


async def test_real_websocket_client_and_server():
    async def handle(request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data.upper())
        return socket

    app = web.Application()
    app.router.add_get("/v1/realtime", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with (
        Proxy(port, {}) as proxy,
        aiohttp.ClientSession(f"http://127.0.0.1:{proxy.port}") as session,
        session.ws_connect("/v1/realtime") as socket,
    ):
        for size in (1, 1000, 1_000_000):
            await socket.send_str("a" * size)
            assert (await socket.receive_str()) == "A" * size
    await runner.cleanup()
    await asyncio.sleep(0)
