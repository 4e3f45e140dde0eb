"""A client or an upstream that disconnects during an exchange, and how the other side learns of it."""

import asyncio
import json

import pytest

from tests.requests.proxy.attacks import RESPONSES
from tests.requests.proxy.proxy_doubles import until
from tests.requests.proxy.proxy_tools import GET, HOST, OK, Client, answer, answering, proxied

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n"
POST = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}"


async def silent_stream(connection):
    """Sends the beginning of a stream and falls silent until the proxy closes."""
    await connection.request()
    await connection.send(STREAM)
    await connection.watch_close()


async def silent(connection):
    await connection.request()
    await connection.watch_close()


@pytest.mark.parametrize("how", ["reset", "close", "half-close"])
async def test_client_gone_within_a_silent_stream_closes_the_upstream(how):
    async with proxied(silent_stream) as (proxy, server):
        client = await proxy.client()
        await client.send(POST)
        await client.head()
        assert await client.chunk() == b"one"
        if how == "reset":
            client.kill()
        elif how == "close":
            client.writer.close()
        else:
            client.writer.write_eof()
        await until(lambda: server.connections[0].closed)
        assert proxy.observer.outcome == "client_gone"
        await until(lambda: proxy.stats.client_connections == proxy.stats.upstream_connections == 0)


async def test_client_gone_before_any_response_closes_the_upstream():
    async with proxied(silent) as (proxy, server):
        client = await proxy.client()
        await client.send(POST)
        await until(lambda: server.received)
        client.kill()
        await until(lambda: server.connections[0].closed)
        assert proxy.observer.outcome == "client_gone"


async def test_client_gone_within_its_body_leaves_the_upstream_with_an_incomplete_request():
    async with proxied(lambda connection: connection.watch_close()) as (proxy, server):
        client = await proxy.client()
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await until(lambda: server.received.endswith(b"1\r\na\r\n"))
        client.kill()
        await until(lambda: server.connections[0].closed)
        assert not server.received.endswith(b"0\r\n\r\n")


async def test_client_gone_is_noticed_behind_pipelined_bytes_that_are_not_read():
    async with proxied(silent_stream, buffer_bytes=1000) as (proxy, server):
        client = await proxy.client()
        await client.send(POST)
        assert (await client.head()).status == 200
        await client.send(GET * 1000)
        (connection,) = proxy.server._clients
        await until(lambda: not connection._reading)
        client.writer.close()
        await until(lambda: server.connections[0].closed)
        assert proxy.observers[0].outcome == "client_gone"


async def test_client_gone_while_the_upstream_takes_nothing():
    async def stuck(connection):
        await connection.reader.readuntil(b"\r\n\r\n")
        connection.writer.transport.pause_reading()
        await stop.wait()
        connection.writer.transport.resume_reading()
        await connection.watch_close()

    stop = asyncio.Event()
    async with proxied(stuck) as (proxy, _):
        client = await proxy.client()
        client.writer.write(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 100000000\r\n\r\n" + bytes(50_000_000))
        await until(lambda: proxy.stats.upstream_connections == 1)
        client.kill()
        await until(lambda: proxy.stats.upstream_connections == 0)
        assert proxy.observer.outcome == "client_gone"
        stop.set()


async def test_client_gone_while_dialling_leaves_no_connection():
    async with proxied(answering) as (proxy, _):
        for _ in range(20):
            client = await proxy.client()
            await client.send(GET)
            client.kill()
        await until(lambda: proxy.stats.client_connections == 0)
        await until(lambda: sum(proxy.stats.outcomes.values()) == proxy.stats.exchanges)
        await until(lambda: proxy.stats.upstream_connections == proxy.stats.upstream_idle)


@pytest.mark.parametrize("reset", [False, True])
async def test_upstream_that_ends_within_a_chunked_stream_leaves_it_without_an_end(reset):
    async def script(connection):
        await connection.request()
        await connection.send(STREAM)
        if reset:
            connection.writer.transport.abort()

    async with proxied(script) as (proxy, _):
        client = await proxy.client()
        await client.send(POST)
        await client.head()
        assert await client.closed() == b"3\r\none\r\n"
        assert proxy.observer.outcome == "upstream_failed"
        assert proxy.stats.upstream_errors["interrupted"] == 1


async def test_upstream_that_ends_short_of_its_length_leaves_the_client_short_too():
    async with proxied(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", close=True)) as (proxy, _):
        client = await proxy.client()
        await client.send(GET)
        assert (await client.head()).header("Content-Length") == "10"
        assert await client.closed() == b"abc"
        assert proxy.observer.outcome == "upstream_failed"


async def test_body_without_a_length_that_ends_in_a_reset_is_not_passed_off_as_complete():
    begun = asyncio.Event()

    async def script(connection):
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        await begun.wait()
        Client(connection.reader, connection.writer).kill()

    async with proxied(script) as (proxy, _):
        client = await proxy.client()
        await client.send(GET)
        await client.head()
        begun.set()
        assert await client.closed() == b"3\r\nabc\r\n"
        assert proxy.observer.outcome == "upstream_failed"


async def test_http_1_0_client_sees_a_broken_stream_as_a_reset():
    async with proxied(answer(STREAM, close=True)) as (proxy, _):
        client = await proxy.client()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionError):
            await client.closed()
        assert proxy.observer.outcome == "upstream_failed"


@pytest.mark.parametrize(
    "piece",
    [b"zz\r\n", b"1\r\nabc\r\n", b"-1\r\n", b"1\nx\r\n"],
)
async def test_upstream_that_breaks_its_chunks_is_cut(piece):
    begun = asyncio.Event()

    async def script(connection):
        await connection.request()
        await connection.send(STREAM)
        await begun.wait()
        await connection.send(piece)
        await connection.watch_close()

    async with proxied(script) as (proxy, _):
        client = await proxy.client()
        await client.send(GET)
        await client.head()
        begun.set()
        assert not (await client.closed()).endswith(b"0\r\n\r\n")
        assert proxy.stats.upstream_errors["invalid"] == 1
        assert proxy.stats.upstream_connections == 0


@pytest.mark.parametrize("name", RESPONSES)
async def test_invalid_response_head_becomes_502(name):
    async with proxied(answer(RESPONSES[name])) as (proxy, _):
        client = await proxy.client()
        reply = await client.ask(GET)
        assert reply.status == 502
        assert json.loads(reply.body)["error"]["code"] == 502
        assert proxy.observer.outcome == "upstream_failed"
        assert proxy.observer.status is None
        assert proxy.stats.upstream_errors["invalid"] == 1
        assert proxy.stats.upstream_connections == 0


async def test_bytes_after_a_response_are_never_taken_for_the_next_one():
    async with proxied(answer(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")) as (proxy, server):
        client = await proxy.client()
        for _ in range(3):
            assert (await client.ask(GET)).body == b"ok"
        assert len(server.connections) == 3


async def test_unsolicited_bytes_on_an_idle_connection_close_it():
    go = asyncio.Event()

    async def script(connection):
        await connection.request()
        await connection.send(OK)
        await go.wait()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await connection.watch_close()

    async with proxied(script) as (proxy, server):
        client = await proxy.client()
        await client.ask(GET)
        go.set()
        await until(lambda: server.connections[0].closed)
        assert proxy.stats.upstream_connections == 0
        assert (await client.ask(GET)).body == b"ok"
