"""However the network cuts requests and responses, both ends see the same, and noise does no harm."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.errors import Refusal
from sidecar.requests.proxy.request import parse_request
from sidecar.requests.proxy.response import parse_response
from tests.requests.proxy.proxy_doubles import until
from tests.requests.proxy.proxy_tools import GET, HOST, OK, answer, cut, places, proxied

REQUESTS = (
    b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 12\r\nX: y\r\n\r\nhello\r\n\r\nyou"
    b"GET /b HTTP/1.1\r\n" + HOST + b"\r\n"
    b"POST /c HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nT: u\r\n\r\n"
    b"HEAD /d HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
)
RESPONSE = b"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n"
RESPONSE += b"8\r\ndata: 1\n\r\n3;a=b\r\n\r\n\n\r\n0\r\nT: u\r\n\r\n"
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def one_by_one(connection):
    """Parses requests strictly, as the proxy frames them, and answers each."""
    while True:
        head = await connection.reader.readuntil(b"\r\n\r\n")
        body = b""
        if b"chunked" in head:
            while size := int(await connection.reader.readuntil(b"\r\n"), 16):
                body += (await connection.reader.readexactly(size + 2))[:-2]
            assert await connection.reader.readexactly(2) == b"\r\n"
        elif b"Content-Length: 12\r\n" in head:
            body = await connection.reader.readexactly(12)
        connection.received += head + body
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@quick
@given(places=places)
async def test_requests_cut_anywhere_reach_the_upstream_alike(places):
    async with proxied(one_by_one) as (proxy, server):
        client = await proxy.client()
        for piece in cut(REQUESTS, places):
            await client.send(piece)
            await asyncio.sleep(0)
        for _ in range(4):
            assert (await client.reply("HEAD")).status == 200
        assert await client.closed() == b""
        assert server.received == (
            b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 12\r\nX: y\r\n\r\nhello\r\n\r\nyou"
            b"GET /b HTTP/1.1\r\n" + HOST + b"\r\n"
            b"POST /c HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nhello!"
            b"HEAD /d HTTP/1.1\r\n" + HOST + b"\r\n"
        )
        assert [observer.request for observer in proxy.observers] == [b"hello\r\n\r\nyou", b"", b"hello!", b""]


@quick
@given(places=places)
async def test_response_cut_anywhere_reaches_the_client_alike(places):
    async def script(connection):
        while True:
            await connection.request()
            for piece in cut(RESPONSE, places):
                await connection.send(piece)
                await asyncio.sleep(0)

    async with proxied(script) as (proxy, server):
        client = await proxy.client()
        for _ in range(2):
            reply = await client.ask(GET)
            assert reply.body == b"data: 1\n\r\n\n"
            assert reply.headers == [("X", "y"), ("Transfer-Encoding", "chunked")]
        assert len(server.connections) == 1
        assert proxy.observers[0].response == b"data: 1\n\r\n\n"


@quick
@given(noise=st.one_of(st.binary(max_size=300), st.tuples(st.integers(0, 300), st.binary(max_size=3))))
async def test_noise_is_answered_or_closed_and_the_next_client_is_served(noise):
    data = noise if isinstance(noise, bytes) else REQUESTS[: noise[0]] + noise[1] + REQUESTS[noise[0] :]
    async with proxied(answer(OK), header_seconds=0.01, body_idle_seconds=0.01, linger_seconds=0.01) as (proxy, _):
        client = await proxy.client()
        await client.send(data)
        client.writer.write_eof()
        await client.closed()
        assert (await (await proxy.client()).ask(GET)).body == b"ok"
        await until(lambda: proxy.stats.client_connections == 1)
        assert sum(proxy.stats.outcomes.values()) == proxy.stats.exchanges
        assert proxy.stats.observer_failures == 0
        assert all(len(observer.outcomes) == 1 for observer in proxy.observers)


@given(place=st.integers(0, 200), noise=st.binary(min_size=1, max_size=4))
def test_head_with_noise_is_refused_or_means_what_it_says(place, noise):
    head = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-Long-Name: some value\r\n\r\n"
    spoiled = head[:place] + noise + head[place:]
    try:
        request = parse_request(spoiled, b"a:1")
    except Refusal:
        return
    # What is forwarded reads the same to a second reader: parsing it again changes nothing.
    again = parse_request(request.forwarded, b"a:1")
    assert (again.forwarded, again.length, again.chunked) == (request.forwarded, request.length, request.chunked)


@given(data=st.binary(max_size=100))
def test_response_head_parser_raises_nothing_but_its_own_error(data):
    with pytest.raises(Refusal):
        parse_response(b"HTTP/1.1 20" + data + b"\r\n\r\n" if not data[:1].isdigit() else b"x" + data)
