"""Requests that two parsers could interpret differently are refused and never reach the upstream."""

import json
import time
from contextlib import suppress

import pytest

from sidecar.errors import Refusal
from sidecar.requests.proxy.request import parse_request
from tests.requests.proxy.attacks import CHUNKED, REQUESTS
from tests.requests.proxy.proxy_doubles import until
from tests.requests.proxy.proxy_tools import GET, HOST, answering, proxied


@pytest.mark.parametrize("name", REQUESTS)
async def test_ambiguous_request_is_refused_and_nothing_reaches_the_upstream(name):
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        reply = await client.ask(REQUESTS[name])
        assert (reply.status, reply.header("Connection")) == (400, "close")
        assert json.loads(reply.body)["error"]["code"] == 400
        await client.send(GET)  # what follows on that connection is not taken for a request
        client.writer.write_eof()
        assert await client.closed() == b""
        assert server.connections == []
        assert proxy.stats.refused["bad_request"] == 1
        assert [observer.outcome for observer in proxy.observers] == ["refused"] * proxy.stats.exchanges


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (b"CONNECT other:443 HTTP/1.1\r\n" + HOST + b"\r\n", 405, "bad_method"),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505, "bad_version"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/0.9\r\n" + HOST + b"\r\n", 505, "bad_version"),
        (b"GET /\r\n\r\n", 400, "bad_request"),
    ],
)
async def test_other_refusals_have_their_own_status(request_, status, reason):
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        assert (await client.ask(request_)).status == status
        assert server.connections == []
        assert proxy.stats.refused[reason] == 1


async def test_bad_chunk_within_a_body_closes_the_upstream_before_the_request_is_complete():
    async with proxied(lambda connection: connection.watch_close()) as (proxy, server):
        client = await proxy.client()
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n3\r\nabc\r\n")
        await until(lambda: server.received.endswith(b"\r\n\r\n3\r\nabc\r\n"))
        assert (await client.ask(b"zz\r\n")).status == 400
        await until(lambda: server.connections[0].closed)
        assert server.received.endswith(b"3\r\nabc\r\n")
        assert proxy.observer.outcome == "refused"


async def test_request_hidden_in_a_body_stays_a_body():
    hidden = b"GET /admin HTTP/1.1\r\nHost: x\r\n\r\n"
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(hidden) + hidden + GET)
        assert (await client.reply()).status == (await client.reply()).status == 200
        assert proxy.stats.exchanges == 2
        assert server.received.count(b"/admin") == 1
        assert proxy.observers[0].request == hidden


async def test_empty_line_before_a_request_is_ignored():
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        assert (await client.ask(b"\r\n" + GET)).status == 200
        assert server.received == GET


def head(*lines):
    return b"GET / HTTP/1.1\r\n" + HOST + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.parametrize(
    ("most", "too_many"),
    [
        (head(*[b"A: b"] * 199), head(*[b"A: b"] * 200)),
        (
            head(b"Connection: " + b",".join(b"o%d" % number for number in range(64))),
            head(*[b"Connection: o%d" % number for number in range(65)]),
        ),
    ],
    ids=["headers", "options"],
)
async def test_more_headers_or_options_than_anyone_sends_get_431(most, too_many):
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        assert (await client.ask(most)).status == 200
        reply = await client.ask(too_many)
        assert (reply.status, reply.header("Connection")) == (431, "close")
        assert len(server.connections) == 1
        assert proxy.stats.refused["headers_too_large"] == 1


def cpu(request):
    """The least process time of several runs, in seconds."""
    times = []
    for _ in range(9):
        start = time.process_time()
        for _ in range(20):
            with suppress(Refusal):
                parse_request(request, b"a:1")
        times.append(time.process_time() - start)
    return min(times)


def test_no_head_costs_much_more_than_one_long_header_of_its_size():
    size = 65_000
    usual = cpu(head(b"A: " + b"x" * size))
    for request in (
        head(b"Connection: " + b"ab,cd,ef" * (size // 8)),
        head(*[b"Connection:"] * (size // 13)),
        head(*[b"A:"] * 190, b"Connection: " + b",".join([b"a"] * (size // 2))),
        head(*[b"Connection: " + b"a," * (size // 400)] * 190),
        head(*[b"Content-Length: 1"] * (size // 19)),
    ):
        assert cpu(request) < 40 * usual  # 8,125 options, then 2,500 lines, once cost a thousand times as much
