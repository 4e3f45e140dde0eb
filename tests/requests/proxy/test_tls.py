"""The proxy with TLS towards its clients: only the transport changes, not the traffic."""

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from sidecar.http.access import Access
from tests.http.certificates import Authority
from tests.requests.proxy.proxy_doubles import Clock, Log, until
from tests.requests.proxy.proxy_tools import GET, HOST, OK, Client, Proxy, answer, answering, raw_server
from tests.requests.proxy.test_exchange_tunnel import UPGRADE, echo

POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST


@pytest.fixture
def authority(tmp_path):
    return Authority.new(tmp_path)


@asynccontextmanager
async def secured(authority, script, **options):
    """A proxy and its upstream; ``connect()`` gives a new client."""
    proxy_options = {name: value for name, value in options.items() if name != "clock"}
    clock = {"clock": options["clock"]} if "clock" in options else {}
    access = Access(authority.web_config(), Log(), 0)
    async with raw_server(script) as server, Proxy(server.port, proxy_options, access=access, **clock) as proxy:

        async def connect(**arguments):
            context = authority.trusting()
            client = Client(*await asyncio.open_connection("localhost", proxy.port, ssl=context, **arguments))
            proxy._clients.append(client)
            return client

        yield proxy, server, connect


async def test_requests_and_their_api_key_pass_unchanged(authority):
    async with secured(authority, answering) as (proxy, server, connect):
        client = await connect()
        request = GET.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer key\r\n\r\n")
        for _ in range(3):
            assert (await client.ask(request)).status == 200
        assert server.received == request * 3
        body = os.urandom(3_000_000)
        await client.send(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert (await client.reply()).status == 200
        assert server.received.endswith(body)
        assert proxy.stats.client_connections == 1


async def test_a_stream_and_a_pipelined_request(authority):
    chunks = b"".join(b"5\r\n%05d\r\n" % number for number in range(2000))
    stream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    async with secured(authority, answer(stream)) as (_, _, connect):
        client = await connect()
        await client.send(GET + GET)
        for _ in range(2):
            assert (await client.reply()).body == b"".join(b"%05d" % number for number in range(2000))


async def test_a_tunnel(authority):
    async with secured(authority, echo) as (_, server, connect):
        client = await connect()
        await client.send(UPGRADE)
        assert (await client.reply()).status == 101
        assert await client.reader.readexactly(5) == b"hello"
        await client.send(b"\x81\x00frame")
        assert await client.reader.readexactly(7) == b"\x81\x00frame"
        client.writer.close()
        await until(lambda: server.connections[0].closed)


async def test_a_refused_request_gets_its_answer(authority):
    async with secured(authority, answering, max_header_bytes=1024) as (proxy, _, connect):
        client = await connect()
        await client.send(b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 100_000)
        assert (await client.reply()).status == 431
        assert proxy.stats.refused["headers_too_large"] == 1


async def test_a_client_that_goes_is_noticed_within_a_stream(authority):
    async def endless(connection):
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await connection.watch_close()

    async with secured(authority, endless) as (proxy, server, connect):
        client = await connect()
        await client.send(GET)
        assert await client.reader.readuntil(b"\r\n\r\n")
        client.kill()
        await until(lambda: server.connections[0].closed)
        await until(lambda: proxy.stats.outcomes["client_gone"] == 1)


async def much(connection):
    """A script: the rest of the connection is a response that has no end."""
    await connection.request()
    await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await connection.send(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")


async def test_a_client_that_reads_slowly_is_not_cut(authority):
    clock = Clock()
    async with secured(authority, much, clock=clock, send_idle_seconds=60) as (proxy, _, connect):
        client = await connect(limit=1024)
        await client.send(GET)
        await client.head()
        for _ in range(20):
            await asyncio.wait_for(client.reader.readexactly(1_000_000), 60)  # more than all buffers on the way hold
            await clock.advance(30)
        assert not proxy.stats.refused["send_timeout"]


async def test_a_client_that_reads_nothing_is_cut(authority):
    clock = Clock()
    async with secured(authority, much, clock=clock, send_idle_seconds=60) as (proxy, server, connect):
        client = await connect(limit=1024)
        await client.send(GET)
        await client.head()
        async with asyncio.timeout(60):
            while not proxy.stats.refused["send_timeout"]:
                await clock.advance(20)
        await until(lambda: server.connections[0].closed)


async def test_the_last_response_reaches_a_slow_reader(authority):
    """The TLS transport does not know how much of it is unsent, so closing must not rely on that."""
    body = os.urandom(2_000_000)
    reply = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    clock = Clock()
    async with secured(authority, answer(reply), clock=clock, linger_seconds=2) as (proxy, _, connect):
        client = await connect(limit=1024)
        await client.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        await client.head()
        read = b""
        while len(read) < len(body):
            await clock.advance(3)
            read += await asyncio.wait_for(client.reader.readexactly(min(100_000, len(body) - len(read))), 60)
        assert read == body
        assert not proxy.stats.refused["send_timeout"]


async def test_a_plain_client_is_counted_and_harms_nobody(authority):
    async with secured(authority, answering) as (proxy, _, connect):
        plain = await proxy.client()
        await plain.send(GET)
        assert b"HTTP/" not in await plain.closed()
        await until(lambda: proxy.stats.refused["tls"] == 1)
        assert (await (await connect()).ask(GET)).status == 200


async def test_a_drain_lets_a_response_end(authority):
    release = asyncio.Event()

    async def script(connection):
        await connection.request()
        await release.wait()
        await connection.send(OK)

    async with secured(authority, script) as (proxy, server, connect):
        client = await connect()
        await client.send(GET)
        await until(lambda: server.connections)
        drain = asyncio.create_task(proxy.server.drain(60))
        release.set()
        assert (await client.reply()).status == 200
        assert await drain == 0
