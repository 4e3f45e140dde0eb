"""Nothing may wait for ever: clients that take nothing or vanish, upstreams that accept and close, limits of files."""

import asyncio
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

from sidecar.requests.proxy import Relay, RelayOptions, Upstream
from sidecar.requests.proxy.observer import observer_factory
from tests.requests.proxy.relay_doubles import Clock, Log, until
from tests.requests.proxy.relay_tools import GET, HOST, OK, Proxy, answering, proxied, raw_server


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


async def endless(connection):
    """A script: a stream for as long as it is taken."""
    await connection.request()
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
    try:
        while True:
            await connection.send(bytes(100_000))
    finally:
        connection.closed = True


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


async def test_host_that_can_not_be_a_name_becomes_502():
    relay = Relay(Upstream("a..b", 80), RelayOptions(pool_warm=0), lambda: None, time.monotonic, Log())
    _, port = await relay.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    async with asyncio.timeout(120):
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 502 Bad Gateway\r\n"
    writer.close()
    await relay.drain(0)


async def test_client_that_takes_nothing_of_its_response_is_cut_and_frees_the_upstream():
    clock = Clock()
    async with proxied(endless, clock=clock, send_idle_seconds=60) as (proxy, server):
        client = await proxy.client(limit=1000)
        await client.send(GET)
        await until(lambda: proxy.relay._clients)
        (connection,) = proxy.relay._clients
        await until(lambda: not connection.is_writable())
        await clock.advance(0)
        await clock.advance(59)
        assert connection.busy
        await clock.advance(2)
        await until(lambda: server.connections[0].closed)
        assert proxy.observer.outcome == "client_gone"
        assert proxy.stats.refused["send_timeout"] == 1
        await until(lambda: proxy.stats.client_connections == 0)


async def test_client_that_takes_its_response_slowly_is_not_cut():
    clock = Clock()
    async with proxied(endless, clock=clock, send_idle_seconds=60) as (proxy, _):
        client = await proxy.client(limit=1000)
        await client.send(GET)
        await until(lambda: proxy.relay._clients)
        (connection,) = proxy.relay._clients
        for _ in range(4):
            await until(lambda: not connection.is_writable())
            await clock.advance(40)
            await client.reader.readexactly(16_000_000)  # more than the kernel holds, so that the relay's bytes move
        assert connection.busy
        assert proxy.stats.refused["send_timeout"] == 0


async def test_kernel_is_told_to_look_for_vanished_peers_within_minutes():
    async with proxied(answering) as (proxy, server):
        client = await proxy.client()
        await client.ask(GET)
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        for column, port in ((1, proxy.port), (2, server.port)):  # the client's connection, and the upstream's
            ours = [row for row in rows if int(row[column].partition(":")[2], 16) == port and row[3] == "01"]
            ((kind, _, left),) = [row[5].partition(":") for row in ours]
            assert kind == "02"  # keep-alive
            assert int(left, 16) / os.sysconf("SC_CLK_TCK") <= 60


async def test_pipelined_head_larger_than_the_buffer_is_read_to_its_end():
    first = asyncio.Event()

    async def script(connection):
        await connection.reader.readuntil(b"\r\n\r\n")
        await first.wait()
        await connection.send(OK)
        await answering(connection)

    options = {"max_header_bytes": 500_000, "buffer_bytes": 65_536}
    async with raw_server(script, limit=1_000_000) as server, Proxy(server.port, options) as proxy:
        client = await proxy.client()
        await client.send(GET)
        await until(lambda: proxy.stats.exchanges == 1)
        sending = asyncio.create_task(client.send(GET[:-2] + b"X: " + b"x" * 400_000 + b"\r\n\r\n"))
        (connection,) = proxy.relay._clients
        await until(lambda: len(connection._buffer) > 65_536)
        first.set()
        async with asyncio.timeout(120):
            await sending
            assert [(await client.reply()).status for _ in range(2)] == [200, 200]


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
        (connection,) = proxy.relay._clients
        await until(lambda: connection._buffer)
        broken.append(RuntimeError())
        await until(lambda: reported)
        await clock.advance(31)
        assert (await client.reply()).status == 408


async def test_soft_limit_on_open_files_is_raised_for_the_connections_allowed():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        async with proxied(answering, max_connections=400):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 800
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_hard_limit_on_open_files_that_is_too_low_is_said_once():
    code = (
        "import resource, structlog; from sidecar.requests.proxy.sockets import allow_descriptors;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 700));"
        "allow_descriptors(1000, structlog.get_logger()); print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("relay_few_descriptors") == 1
    assert done.stdout.endswith("(700, 700)\n")


class Nothing:
    """A sink that keeps nothing."""

    def started(self, start): ...

    def finished(self, record): ...

    def dropped(self, reason, count): ...


async def test_requests_that_wait_for_their_response_keep_no_bodies():
    count, size = 40, 500_000
    whole = 0

    async def script(connection):
        nonlocal whole
        await connection.reader.readuntil(b"\r\n\r\n")
        left = size
        while left:
            left -= len(await connection.reader.read(left))
        whole += 1
        await connection.watch_close()

    observe = observer_factory(Nothing(), max_bytes=1_048_576)
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size
    request = head + b'{"prompt": "' + b"x" * (size - 14) + b'"}'
    tracemalloc.start()
    try:
        async with proxied(script, observe=observe) as (proxy, _):
            for number in range(count):
                client = await proxy.client()
                await client.send(request)
                await until(lambda number=number: whole == number + 1)
            assert proxy.stats.exchanges == count
            assert tracemalloc.get_traced_memory()[0] < count * size / 4
    finally:
        tracemalloc.stop()
