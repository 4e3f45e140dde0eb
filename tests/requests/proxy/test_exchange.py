"""What is forwarded unchanged, what is rebuilt, and in which order."""

import asyncio

import pytest

from sidecar.requests.proxy.outcomes import ExchangeOutcome
from tests.requests.proxy.proxy_doubles import until
from tests.requests.proxy.proxy_tools import GET, HOST, OK, Proxy, answer, answering, proxied, raw_server


async def test_request_reaches_the_upstream_as_it_was_sent():
    request = (
        b"POST /v1/chat/completions?a=%2F..%2f&b#c HTTP/1.1\r\nhOsT: model.example:8000\r\n"
        b'Authorization: Bearer k\r\nX-Dup: 1\r\nx-dup: 2\r\nEmpty:\r\nContent-Length: 7\r\nLast: \xe4\r\n\r\n{"a":1}'
    )
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        assert (await client.ask(request)).body == b"ok"
        assert server.received == request
        recorded = proxy.observer.calls[0]
        assert recorded[:3] == ("request_head", b"POST", b"/v1/chat/completions?a=%2F..%2f&b#c")
        assert (b"X-Dup", b"1") in recorded[3]
        assert proxy.observer.request == b'{"a":1}'


@pytest.mark.parametrize(
    "method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD", "QUERY", "PROPFIND"]
)
async def test_every_method_passes(method):
    async with proxied(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (proxy, server):
        client = await proxy.client()
        await client.ask(f"{method} /x HTTP/1.1\r\n".encode() + HOST + b"\r\n", method)
        assert server.received.startswith(f"{method} /x HTTP/1.1\r\n".encode())


async def test_options_asterisk_passes():
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        await client.ask(b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n")
        assert server.received.startswith(b"OPTIONS * HTTP/1.1\r\n")


async def test_connection_level_headers_end_at_the_proxy_both_ways():
    response = (
        b"HTTP/1.1 200 Fine\r\nServer: u\r\nConnection: X-Private, keep-alive\r\nX-Private: 1\r\n"
        b"Keep-Alive: timeout=5\r\nTrailer: T\r\nContent-Length: 2\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\nok"
    )
    async with proxied(answer(response)) as (proxy, server):
        client = await proxy.client()
        reply = await client.ask(
            b"GET / HTTP/1.1\r\n" + HOST + b"Connection: keep-alive, X-Secret,Host\r\nX-Secret: 1\r\nTE: trailers\r\n"
            b"Keep-Alive: 3\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nX-Kept: 1\r\n\r\n"
        )
        assert server.received == b"GET / HTTP/1.1\r\n" + HOST + b"X-Kept: 1\r\n\r\n"
        assert reply.reason == "Fine"
        assert reply.headers == [
            ("Server", "u"), ("Content-Length", "2"), ("Set-Cookie", "a"), ("Set-Cookie", "b")
        ]  # fmt: skip


async def test_chunked_request_is_framed_anew_without_extensions_and_trailers():
    async def script(connection):
        while not connection.received.endswith(b"0\r\n\r\n"):
            await connection.read()
        await connection.send(OK)
        await connection.watch_close()

    async with proxied(script) as (proxy, server):
        client = await proxy.client()
        await client.ask(
            b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: Chunked\r\n\r\n"
            b"3;ext=1\r\nabc\r\n002\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
        )
        assert server.received == (
            b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
        )
        assert proxy.observer.request == b"abcde"


async def test_chunks_are_passed_on_as_they_come_and_the_trailer_is_dropped():
    step = asyncio.Event()

    async def script(connection):
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for data in (b"7\r\ndata: 1\r\n", b"7\r\ndata: 2\r\n"):
            await connection.send(data)
            await step.wait()
            step.clear()
        await connection.send(b"0\r\nX: y\r\n\r\n")
        await connection.watch_close()

    async with proxied(script) as (proxy, _):
        client = await proxy.client()
        await client.send(GET)
        await client.head()
        for expected in (b"data: 1", b"data: 2"):
            assert await client.chunk() == expected  # before the upstream sends more
            step.set()
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"
        assert proxy.observer.response == b"data: 1data: 2"
        await until(lambda: proxy.stats.upstream_idle == 1)


async def test_interim_responses_pass_and_expect_is_the_upstreams_to_answer():
    async def script(connection):
        assert b"Expect: 100-continue\r\n" in await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
        connection.received += await connection.reader.readexactly(3)
        await connection.send(OK)
        await connection.watch_close()

    async with proxied(script) as (proxy, server):
        client = await proxy.client()
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert (await client.reply()).status == 100
        hints = await client.reply()
        assert (hints.status, hints.headers) == (103, [("Link", "<x>")])
        assert (await client.ask(b"abc")).body == b"ok"
        assert server.received == b"abc"
        assert proxy.observer.status == 200


async def test_final_answer_before_the_body_reaches_the_client_and_ends_the_connection():
    async def script(connection):
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"HTTP/1.1 417 No\r\nContent-Length: 2\r\n\r\nno")
        await connection.watch_close()

    async with proxied(script) as (proxy, server):
        client = await proxy.client()
        reply = await client.ask(b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert (reply.status, reply.body, reply.header("Connection")) == (417, b"no", "close")
        assert await client.closed() == b""
        await until(lambda: server.connections[0].closed)  # never reused: the upstream still expects a body
        assert server.received == b""


async def test_connection_close_of_the_client_is_honoured_and_not_forwarded():
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        reply = await client.ask(b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        assert reply.header("Connection") == "close"
        assert await client.closed() == b""
        assert b"onnection" not in server.received
        assert proxy.stats.upstream_idle == 1


async def test_upstream_connection_is_not_reused_after_its_close():
    async with proxied(answer(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))) as (proxy, server):
        client = await proxy.client()
        for _ in range(3):
            reply = await client.ask(GET)
            assert reply.header("Connection") is None
        assert len(server.connections) == 3


async def test_pipelined_requests_are_served_in_order_and_one_at_a_time():
    running = 0

    async def script(connection):
        nonlocal running
        while True:
            head = await connection.request()
            running += 1
            assert running == 1
            await asyncio.sleep(0)  # a second request would get its chance here
            running -= 1
            path = head.split(b" ")[1]
            await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))

    async with proxied(script) as (proxy, server):
        client = await proxy.client()
        requests = b"".join(
            b"POST /%d HTTP/1.1\r\n%bContent-Length: 3\r\n\r\nxyz\r\n" % (number, HOST) for number in range(200)
        )
        await client.send(requests)
        for number in range(200):
            assert (await client.reply()).body == b"/%d" % number
        assert server.received == requests.replace(b"xyz\r\n", b"xyz")
        assert [observer.outcome for observer in proxy.observers] == [ExchangeOutcome.COMPLETED] * 200


async def test_idle_connections_are_dialled_ahead():
    async with raw_server(answering) as server:
        async with Proxy(server.port, {"pool_warm": 3}) as proxy:
            await until(lambda: proxy.stats.upstream_idle == 3)
            accepted = len(server.connections)
            client = await proxy.client()
            await client.ask(GET)
            assert len(server.received) == len(GET)
            assert accepted == 3
        assert proxy.stats.upstream_connections == 0


async def test_ten_megabytes_both_ways_are_byte_exact():
    body = bytes(range(256)) * 40_960

    async def script(connection):
        await connection.request()
        data = connection.received.split(b"\r\n\r\n", 1)[1]
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(data), 100_000):
            piece = data[start : start + 100_000]
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await connection.send(b"0\r\n\r\n")

    async with proxied(script) as (proxy, _):
        client = await proxy.client()
        reply = await client.ask(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert reply.body == body
        assert proxy.observer.request == proxy.observer.response == body


@pytest.mark.parametrize(
    ("framing", "pieces", "opens_at"),
    [
        (b"Content-Length: 4\r\n", [b"", b"a", b"bc", b"d"], 3),
        (b"Content-Length: 2000\r\n", [b"", b"a", b"b" * 1999], 1),
        (b"Transfer-Encoding: chunked\r\n", [b"", b"1\r\n", b"a", b"\r\n0\r\n\r\n"], 2),
        (b"Transfer-Encoding: chunked\r\n", [b"", b"0\r\n", b"\r\n"], 2),
        (b"Content-Length: 4\r\nExpect: 100-continue\r\n", [b"", b"abcd"], 0),
        (b"Content-Length: 0\r\n", [b""], 0),
    ],
)
async def test_upstream_is_not_asked_before_a_small_body_is_there_or_a_large_one_has_begun(framing, pieces, opens_at):
    async with proxied(lambda connection: connection.watch_close(), awaited_body_bytes=1000) as (proxy, server):
        client = await proxy.client()
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + framing + b"\r\n")
        await until(lambda: proxy.stats.exchanges == 1)
        for number, piece in enumerate(pieces):
            if piece:
                await client.send(piece)
            if number < opens_at:
                # Another client's answer comes after the proxy has seen this piece.
                assert (await (await proxy.client()).ask(b"nonsense\r\n\r\n")).status == 400
                assert server.connections == []
            else:
                await until(lambda: server.connections)
        end = b"0\r\n\r\n" if b"chunked" in framing else pieces[-1]
        await until(lambda: server.received.endswith(end))
