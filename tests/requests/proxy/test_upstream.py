"""An upstream that is down, closes its connections, or breaks off; what is retried and what is not."""

import asyncio
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.server import ProxyServer
from tests.debian_servers import free_port
from tests.requests.proxy.proxy_doubles import Clock, Log, until
from tests.requests.proxy.proxy_tools import GET, HOST, OK, Proxy, answering, proxied, raw_server

POST = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}"


async def test_unreachable_upstream_becomes_502_and_the_state_is_logged_once_each_way():
    port = free_port()
    async with Proxy(port, {}) as proxy:
        client = await proxy.client()
        for _ in range(3):
            reply = await client.ask(POST)  # on one connection: it stays open
            error = json.loads(reply.body)["error"]
            assert (reply.status, error["code"], error["type"], error["param"]) == (502, 502, "server_error", None)
            assert str(port) not in error["message"]
        assert proxy.stats.upstream_errors["connect"] == 3
        assert [observer.outcome for observer in proxy.observers] == ["upstream_failed"] * 3
        assert proxy.log.events == [("upstream unreachable", {"kind": "connect"})]
        async with raw_server(answering, port=port):
            assert (await client.ask(POST)).status == 200
            await client.ask(POST)
            assert [event for event, _ in proxy.log.events] == ["upstream unreachable", "upstream reachable again"]


async def test_failure_of_a_head_request_has_no_body():
    async with Proxy(free_port(), {}) as proxy:
        client = await proxy.client()
        for _ in range(2):
            assert (await client.ask(b"HEAD / HTTP/1.1\r\n" + HOST + b"\r\n", "HEAD")).status == 502


async def test_unreachable_upstream_with_the_body_still_coming():
    async with Proxy(free_port(), {}) as proxy:
        client = await proxy.client()
        reply = await client.ask(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 9000000\r\n\r\n" + bytes(1_000_000))
        assert (reply.status, reply.header("Connection")) == (502, "close")


async def test_upstream_that_does_not_accept_becomes_504():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]  # fill the queue: the kernel drops what comes after
        for probe in waiting:
            probe.setblocking(False)
            probe.connect_ex(full.getsockname())
        async with Proxy(full.getsockname()[1], {"connect_seconds": 0.05}) as proxy:
            client = await proxy.client()
            reply = await client.ask(POST)
            assert (reply.status, json.loads(reply.body)["error"]["code"]) == (504, 504)
            assert proxy.stats.upstream_errors["connect_timeout"] == 1
            for probe in waiting:
                probe.close()


@pytest.mark.parametrize("partial", [b"", b"HTTP/1.1 200 OK\r\nContent-"])
async def test_upstream_that_closes_without_a_response_becomes_502_and_is_not_asked_twice(partial):
    async def script(connection):
        await connection.request()
        await connection.send(partial)

    async with proxied(script) as (proxy, server):
        client = await proxy.client()
        for request in (POST, GET):
            assert (await client.ask(request)).status == 502
        assert server.received == POST + GET
        assert proxy.stats.upstream_errors["interrupted" if partial else "closed"] == 2
        assert proxy.stats.retries == 0


async def closes_on_the_second(connection):
    """Serves one request, accepts the second, and closes without a reply."""
    await connection.request()
    await connection.send(OK)
    await connection.request()


async def test_safe_request_on_a_pooled_connection_that_dies_is_sent_once_more():
    async with proxied(closes_on_the_second) as (proxy, server):
        client = await proxy.client()
        await client.ask(GET)
        assert (await client.ask(GET)).body == b"ok"
        assert server.received == GET * 3
        assert proxy.stats.retries == 1
        assert [observer.outcomes for observer in proxy.observers] == [["completed"], ["completed"]]


async def test_retry_happens_at_most_once():
    async def script(connection):
        await connection.request()
        if connection is server.connections[0]:
            await connection.send(OK)
            await connection.request()

    async with proxied(script) as (proxy, server):
        client = await proxy.client()
        await client.ask(GET)
        assert (await client.ask(GET)).status == 502
        assert server.received == GET * 3


@pytest.mark.parametrize(
    "request_",
    [
        POST,
        POST.replace(b"Content-Length: 2\r\n\r\n{}", b"Content-Length: 0\r\n\r\n"),
        b"POST /abort HTTP/1.1\r\n" + HOST + b"\r\n",
        b"DELETE / HTTP/1.1\r\n" + HOST + b"\r\n",
        GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\nx"),
    ],
)
async def test_request_that_may_have_been_executed_is_never_sent_again(request_):
    async with proxied(closes_on_the_second) as (proxy, server):
        client = await proxy.client()
        await client.ask(GET)
        assert (await client.ask(request_)).status == 502
        assert server.received == GET + request_
        assert proxy.stats.retries == 0
        assert proxy.stats.upstream_errors["closed"] == 1


async def test_connection_that_the_upstream_has_just_closed_is_not_used():
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        assert (await client.ask(POST)).status == 200
        descriptor = os.dup(server.connections[0].writer.get_extra_info("socket").fileno())
        with socket.socket(fileno=descriptor) as same:
            same.shutdown(socket.SHUT_RDWR)
            # Nothing is awaited here: the event loop does not know of the end yet.
            assert proxy.stats.upstream_idle == 1
            assert proxy.server._pool.take() is None
        assert (await client.ask(POST)).status == 200
        assert server.received == POST * 2


async def test_idle_connections_are_given_up_before_the_upstream_does():
    clock = Clock()
    async with proxied(answering, clock=clock, pool_idle_seconds=3, idle_seconds=1000) as (proxy, server):
        client = await proxy.client()
        await client.ask(POST)
        await clock.advance(2)
        assert proxy.stats.upstream_idle == 1
        await client.ask(POST)
        assert len(server.connections) == 1
        await clock.advance(4)
        assert proxy.stats.upstream_idle == 0
        assert (await client.ask(POST)).status == 200
        assert len(server.connections) == 2


async def test_pool_keeps_no_more_than_its_size():
    async with proxied(answering, pool_size=2) as (proxy, _):
        clients = [await proxy.client() for _ in range(5)]
        for client in clients:
            await client.send(GET)
        for client in clients:
            await client.reply()
        await until(lambda: proxy.stats.upstream_connections == proxy.stats.upstream_idle <= 2)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


async def test_upstream_over_tls(certificate):
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    async with raw_server(answering, ssl=server_side) as server:
        trusting = ssl.create_default_context(cafile=certificate / "cert.pem")
        async with Proxy(server.port, {}, ssl=trusting) as proxy:
            client = await proxy.client()
            for _ in range(3):
                assert (await client.ask(POST)).body == b"ok"
            assert server.received == POST * 3
            assert len(server.connections) == 1


async def test_upstream_whose_certificate_is_not_trusted_gets_nothing(certificate):
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    async with (
        raw_server(answering, ssl=server_side) as server,
        Proxy(server.port, {}, ssl=ssl.create_default_context()) as proxy,
    ):
        client = await proxy.client()
        assert (await client.ask(POST)).status == 502
        assert server.received == b""
        assert proxy.stats.upstream_errors["tls"] == 1


@contextmanager
def accepting_and_closing():
    """A port whose connections are closed as soon as they stand; and how many there were."""
    accepted = []

    def accept() -> None:
        while True:
            try:
                peer, address = listener.accept()
            except OSError:
                return
            accepted.append(address)
            peer.close()

    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1], accepted
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


async def test_upstream_that_accepts_and_closes_at_once_never_leaves_a_request_without_an_answer():
    with accepting_and_closing() as (port, _):
        async with Proxy(port, {}) as proxy, asyncio.timeout(120):
            client = await proxy.client()
            for _ in range(100):
                assert (await client.ask(GET)).status == 502
            assert proxy.stats.outcomes["upstream_failed"] == 100


async def test_upstream_that_accepts_and_closes_is_not_dialled_in_a_loop():
    with accepting_and_closing() as (port, accepted):
        async with Proxy(port, {"pool_warm": 4, "tick_seconds": 1000.0}) as proxy, asyncio.timeout(120):
            await until(lambda: accepted)
            client = await proxy.client()
            for _ in range(20):
                assert (await client.ask(GET)).status == 502
            assert len(accepted) <= 4 + 20


async def test_host_that_cannot_be_a_name_becomes_502():
    server = ProxyServer(Upstream("a..b", 80), ProxyOptions(pool_warm=0), lambda *_: None, time.monotonic, Log())
    _, port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    async with asyncio.timeout(120):
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 502 Bad Gateway\r\n"
    writer.close()
    await server.drain(0)
