"""What a client gets of a response, by its own version and by how the upstream frames it."""

import pytest

from tests.requests.proxy.proxy_tools import GET, HOST, OK, answer, answering, proxied


@pytest.mark.parametrize(
    ("status", "method", "headers"),
    [
        (200, "HEAD", b"Content-Length: 1000\r\n"),
        (200, "HEAD", b"Transfer-Encoding: chunked\r\n"),
        (204, "GET", b""),
        (304, "GET", b"Content-Length: 1000\r\nETag: x\r\n"),
    ],
)
async def test_responses_without_body_leave_the_connections_in_step(status, method, headers):
    async with proxied(answer(b"HTTP/1.1 %d X\r\n%b\r\n" % (status, headers))) as (proxy, server):
        client = await proxy.client()
        for _ in range(3):
            reply = await client.ask(f"{method} / HTTP/1.1\r\n".encode() + HOST + b"\r\n", method)
            assert reply.status == status
            sent = [line.split(": ") for line in headers.decode().split("\r\n") if line]
            assert [list(pair) for pair in reply.headers] == sent
        assert len(server.connections) == 1


async def test_204_with_a_length_loses_it():
    async with proxied(answer(b"HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n")) as (proxy, _):
        client = await proxy.client()
        assert (await client.ask(GET)).headers == []


async def test_http_1_0_client_gets_no_chunks_and_a_host_is_supplied():
    async with proxied(
        answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
    ) as (proxy, server):
        client = await proxy.client()
        reply = await client.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert reply.body == b"abc"
        assert reply.header("Transfer-Encoding") is None
        assert reply.header("Connection") == "close"
        assert server.received == b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % server.port


async def test_http_1_0_keep_alive_where_the_length_is_known():
    async with proxied(answering) as (proxy, _):
        client = await proxy.client()
        for _ in range(2):
            reply = await client.ask(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
            assert reply.header("Connection") == "keep-alive"
        reply = await client.ask(b"GET / HTTP/1.0\r\n\r\n")
        assert reply.header("Connection") == "close"
        assert await client.closed() == b""


async def test_http_1_0_client_gets_no_interim_response():
    async with proxied(answer(b"HTTP/1.1 103 E\r\n\r\n" + OK)) as (proxy, _):
        client = await proxy.client()
        assert (await client.ask(b"GET / HTTP/1.0\r\n\r\n")).status == 200


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_upstream_body_that_ends_with_its_connection_is_complete(version):
    async with proxied(answer(b"HTTP/%b 200 OK\r\n\r\nabc" % version, close=True)) as (proxy, server):
        client = await proxy.client()
        for _ in range(2):
            reply = await client.ask(GET)
            assert (reply.body, reply.header("Transfer-Encoding")) == (b"abc", "chunked")
        assert len(server.connections) == 2
        assert proxy.stats.outcomes["completed"] == 2
