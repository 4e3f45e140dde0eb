"""A slow receiver slows its sender down; the proxy buffers little in between."""

import asyncio

import pytest

from tests.requests.proxy.proxy_doubles import until
from tests.requests.proxy.proxy_tools import GET, HOST, proxied

BUFFER = 65_536
# What one read may bring on top of the mark at which the sender is paused: uvloop's and asyncio's read size.
ONE_READ = 262_144
SIZE = 10_000_000


class HighWater:
    """The most unsent bytes of any of the proxy's sockets, looked at after every write."""

    def __init__(self, monitored):
        self.most = 0
        self._transports = monitored
        self._task = asyncio.create_task(self._watch())

    async def _watch(self):
        while True:
            for transport in self._transports():
                self.most = max(self.most, transport.get_write_buffer_size())
            await asyncio.sleep(0)

    def stop(self):
        self._task.cancel()


@pytest.mark.parametrize("chunked", [False, True])
async def test_slow_client_holds_the_upstream_back_and_gets_every_byte(chunked):
    sent = 0

    async def script(connection):
        nonlocal sent
        await connection.request()
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % SIZE
        await connection.send(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n")
        while sent < SIZE:
            piece = bytes([sent // 10_000 % 256]) * 10_000
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            sent += len(piece)
        await connection.send(b"0\r\n\r\n" if chunked else b"")
        await connection.watch_close()

    async with proxied(script, buffer_bytes=BUFFER) as (proxy, server):
        client = await proxy.client(limit=1000)
        await client.send(GET)
        await until(lambda: proxy.server._clients)
        (connection,) = proxy.server._clients
        water = HighWater(lambda: [connection._transport])
        await until(lambda: not connection.is_writable())
        await until(lambda: server.connections[0].writer.transport.get_write_buffer_size() > BUFFER)
        assert sent < SIZE
        reply = await client.reply()
        expected = b"".join(bytes([number % 256]) * 10_000 for number in range(SIZE // 10_000))
        assert reply.body == expected
        assert proxy.observer.response == expected
        assert BUFFER < water.most <= BUFFER + 2 * ONE_READ
        water.stop()


@pytest.mark.parametrize("chunked", [False, True])
async def test_slow_upstream_holds_the_client_back_and_gets_every_byte(chunked):
    go = asyncio.Event()

    async def script(connection):
        connection.writer.transport.pause_reading()
        await go.wait()
        connection.writer.transport.resume_reading()
        await connection.watch_close()

    async with proxied(script, buffer_bytes=BUFFER) as (proxy, server):
        client = await proxy.client()
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % SIZE
        body = bytes(range(250)) * (SIZE // 250)
        wire = b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE, body) if chunked else body
        client.writer.write(b"POST / HTTP/1.1\r\n" + HOST + framing + b"\r\n\r\n" + wire)
        await until(lambda: proxy.server._pool.open)
        (upstream,) = proxy.server._pool.open
        water = HighWater(lambda: [upstream.transport])
        await until(lambda: not upstream.writable)
        assert client.writer.transport.get_write_buffer_size() > 0
        go.set()
        await until(lambda: len(server.received) >= SIZE and proxy.observer.request == body)
        assert BUFFER < water.most <= BUFFER + 2 * ONE_READ
        water.stop()


async def test_pipelining_client_that_does_not_read_gets_no_more_answers_than_fit():
    answered = 0

    async def script(connection):
        nonlocal answered
        while True:
            await connection.request()
            await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000))
            answered += 1

    async with proxied(script, buffer_bytes=BUFFER) as (proxy, _):
        client = await proxy.client(limit=1000)
        await client.send(GET * 300)
        (connection,) = proxy.server._clients
        water = HighWater(lambda: [connection._transport])
        await until(lambda: not connection.is_writable())
        assert answered < 300
        for _ in range(300):
            assert len((await client.reply()).body) == 100_000
        assert answered == 300
        assert BUFFER < water.most <= BUFFER + 2 * ONE_READ
        water.stop()
