"""The guarded web server against misbehaving clients."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from sidecar.http.connection import Connection
from sidecar.http.guard import GuardedServer, GuardOptions, Refusal
from sidecar.http.unsent import is_sending

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ODDITY = "an oddity"


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


class Site:
    """What the handlers of the served app wait for, and how often they ran."""

    def __init__(self):
        self.go_on = asyncio.Event()
        self.running = 0

    async def quick(self, request):
        return web.Response(text="quick")

    async def slow(self, request):
        self.running += 1
        await self.go_on.wait()
        self.running -= 1
        return web.Response(text="slow")

    async def large(self, request):
        return web.Response(body=bytes(64 * 1024 * 1024))

    async def echo(self, request):
        return web.Response(body=await request.read())

    async def failing(self, request):
        raise RuntimeError(ODDITY)


@asynccontextmanager
async def guarded(**options):
    site, app = Site(), web.Application()
    app.router.add_get("/", site.quick)
    app.router.add_get("/slow", site.slow)
    app.router.add_get("/large", site.large)
    app.router.add_get("/failing", site.failing)
    app.router.add_post("/", site.echo)
    server = GuardedServer(app, GuardOptions(**options))
    address = server.address = await server.start("127.0.0.1", 0)
    opened = []

    async def connect(data=b""):
        reader, writer = await asyncio.open_connection(*address)
        opened.append(writer)
        writer.write(data)
        return reader, writer

    try:
        yield server, site, connect
    finally:
        await server.stop()
        for writer in opened:
            writer.close()


async def ended(reader):
    """Everything received until the connection ends, however it ends."""
    data = b""
    async with asyncio.timeout(120):
        while True:
            try:
                piece = await reader.read(65_536)
            except ConnectionError:
                return data
            if not piece:
                return data
            data += piece


async def response(reader):
    async with asyncio.timeout(120):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        return head.split(b" ")[1] + b" " + await reader.readexactly(length)


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\nX-A"])
async def test_a_head_that_does_not_come_whole_is_cut(sent):
    async with guarded(header_seconds=0.05) as (server, _, connect):
        reader, _ = await connect(sent)
        assert await ended(reader) == b""
        await until(lambda: server.connections == 0)
        assert server.refusals[Refusal.TIMEOUT] == 1


async def test_a_head_that_trickles_is_cut_all_the_same():
    async with guarded(header_seconds=0.1) as (server, _, connect):
        _, writer = await connect(b"GET / HTTP/1.1\r\n")

        async def trickle():
            while server.connections:
                writer.write(b"X-A: b\r\n")
                await asyncio.sleep(0.002)

        await until(lambda: server.connections == 1)
        trickling = asyncio.create_task(trickle())
        await until(lambda: server.refusals[Refusal.TIMEOUT] == 1)
        await trickling


async def test_half_a_head_after_a_request_is_cut_too():
    async with guarded(header_seconds=0.05) as (server, _, connect):
        reader, writer = await connect(GET)
        assert await response(reader) == b"200 quick"
        writer.write(b"GET / HT")
        assert await ended(reader) == b""
        assert server.refusals[Refusal.TIMEOUT] == 1


async def test_a_handler_may_take_longer_than_any_deadline():
    async with guarded(header_seconds=0.03, idle_seconds=0.03) as (_, site, connect):
        reader, _ = await connect(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: site.running == 1)
        other, _ = await connect()
        assert await ended(other) == b""  # the deadline has passed for another, so for this one as well
        site.go_on.set()
        assert await response(reader) == b"200 slow"


async def test_an_idle_connection_is_closed_without_being_counted():
    async with guarded(idle_seconds=0.05) as (server, _, connect):
        reader, _ = await connect(GET)
        assert await response(reader) == b"200 quick"
        assert await ended(reader) == b""
        await until(lambda: server.connections == 0)
        assert server.refusals[Refusal.TIMEOUT] == 0


async def test_a_connection_is_kept_for_the_next_request():
    async with guarded() as (server, _, connect):
        reader, writer = await connect(GET + GET)
        assert [await response(reader), await response(reader)] == [b"200 quick"] * 2
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
        assert await response(reader) == b"200 abc"
        assert server.connections == 1


async def test_a_client_that_never_takes_its_response_is_cut():
    async with guarded(idle_seconds=0.1) as (server, _, connect):
        await connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: server.refusals[Refusal.TIMEOUT] == 1)
        await until(lambda: server.connections == 0)


async def test_a_connection_past_its_addresss_limit_takes_the_place_of_the_longest_idle():
    async with guarded(max_per_address=2) as (server, _, connect):
        (first, _), (second, writer) = await connect(GET), await connect(GET)
        assert [await response(first), await response(second)] == [b"200 quick"] * 2
        writer.write(GET)  # so the first is the one that has been idle longest
        assert await response(second) == b"200 quick"
        third, _ = await connect(GET)
        assert await response(third) == b"200 quick"
        assert await ended(first) == b""
        writer.write(GET)
        assert await response(second) == b"200 quick"
        assert (server.connections, server.refusals[Refusal.GAVE_WAY]) == (2, 1)


async def test_a_client_that_still_reads_its_response_gives_way_last():
    async with guarded(max_per_address=2) as (server, _, connect):
        slow, _ = await connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: [is_sending(one._transport) for one in server._connections.values()] == [True])
        idle, _ = await connect(GET)
        assert await response(idle) == b"200 quick"
        await connect(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await ended(idle) == b""
        assert await slow.readexactly(32 * 1024 * 1024)  # more than the kernel's buffers hold
        fourth, _ = await connect(GET)  # nobody else is idle
        assert await response(fourth) == b"200 quick"
        assert len(await ended(slow)) < 32 * 1024 * 1024
        assert server.refusals[Refusal.GAVE_WAY] == 2


async def test_no_request_in_progress_gives_way():
    async with guarded(max_per_address=2) as (server, site, connect):
        held = [(await connect(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))[0] for _ in range(2)]
        await until(lambda: site.running == 2)
        reader, _ = await connect(GET)
        assert await ended(reader) == b""
        assert server.refusals[Refusal.TOO_MANY_CONNECTIONS] == 1
        site.go_on.set()
        assert [await response(reader) for reader in held] == [b"200 slow"] * 2


async def test_a_flood_of_silent_connections_never_keeps_a_probe_out():
    async with guarded() as (server, _, connect):
        for _ in range(300):
            await connect()
        reader, _ = await connect(GET)
        assert await response(reader) == b"200 quick"
        assert server.connections <= GuardOptions().max_per_address


class _Client:
    """What the guard asks of a transport."""

    def __init__(self, address):
        self.address = address
        self.is_open = True

    def get_extra_info(self, name):
        return (self.address, 1) if name == "peername" else None

    def get_write_buffer_size(self):
        return 0

    def __getattr__(self, _):
        return lambda *_: None

    def abort(self):
        self.is_open = False


async def test_loopback_has_its_own_places_and_one_address_cannot_take_all_others():
    async with guarded(max_connections=4, max_per_address=3) as (server, _, _):

        def client(address):
            found = _Client(address)
            connection = Connection(server, server.options.header_seconds, server.options.idle_seconds)
            connection.connection_made(found)
            opened.append(connection)
            return found

        opened = []
        greedy = [client("10.0.0.1") for _ in range(4)]
        assert [one.is_open for one in greedy] == [False, True, True, True]
        probe, local = client("10.0.0.2"), [client("127.0.0.1"), client("::1"), client("::ffff:127.0.0.1")]
        assert [one.is_open for one in greedy] == [False, True, True, True]
        assert all(one.is_open for one in (probe, *local))
        other = client("10.0.0.3")  # no place is left: the longest idle, whose ever it is, but loopback's
        assert [one.is_open for one in greedy] == [False, False, True, True]
        assert all(one.is_open for one in (probe, other, *local))
        assert server.connections == 7
        for connection in opened:
            connection.connection_lost(None)
        assert server.connections == 0


async def test_what_is_not_http_is_answered_counted_and_not_logged(caplog):
    caplog.set_level(logging.DEBUG)
    async with guarded() as (server, _, connect):
        reader, _ = await connect(GET.replace(b"Host: x", b"no-colon-but-a-secret"))
        answer = await ended(reader)
        assert b" 400 " in answer
        assert b"secret" not in answer
        assert b"aiohttp" not in answer
        assert server.refusals[Refusal.MALFORMED] == 1
    assert "secret" not in caplog.text


@pytest.mark.parametrize("path", ["/", "/none", "/failing"])
async def test_every_response_has_the_security_headers_and_no_version(path):
    async with guarded() as (_, _, connect):
        reader, _ = await connect(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head = (await ended(reader)).partition(b"\r\n\r\n")[0].decode().lower().splitlines()
    assert "server: specdec-sidecar" in head
    assert {"x-content-type-options: nosniff", "x-frame-options: deny", "referrer-policy: no-referrer"} <= set(head)


async def test_a_failing_handler_is_counted_and_named_once(caplog):
    async with guarded() as (server, _, connect):
        for _ in range(2):
            reader, _ = await connect(b"GET /failing HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 500 " in await reader.readline()
        assert server.refusals[Refusal.INTERNAL] == 2
    assert caplog.text.count("RuntimeError") == 1
    assert ODDITY not in caplog.text


async def test_a_body_is_handed_on_compressed():
    async with guarded() as (_, _, connect):
        reader, _ = await connect(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        )
        assert await response(reader) == b"200 abc"


async def test_a_large_body_is_read_in_small_pieces(monkeypatch):
    """So that the parser never has much to do in one turn of the event loop."""
    sizes, data_received = [], web.RequestHandler.data_received

    def received(self, data):
        sizes.append(len(data))
        data_received(self, data)

    monkeypatch.setattr(web.RequestHandler, "data_received", received)
    async with guarded() as (_, _, connect):
        reader, _ = await connect(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" + bytes(500_000))
        assert await response(reader) == b"200 " + bytes(500_000)
    assert sum(sizes) > 500_000
    assert max(sizes) <= 16_384


async def test_a_running_handler_may_end_while_the_server_stops():
    async with guarded(shutdown_seconds=5) as (server, site, connect):
        reader, _ = await connect(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: site.running == 1)
        stopping = asyncio.create_task(server.stop())
        site.go_on.set()
        assert await response(reader) == b"200 slow"
        await stopping
        assert server.connections == 0


async def test_a_body_that_was_answered_already_is_not_parsed():
    """Whatever follows: the parser would count broken chunks as malformed."""
    async with guarded(linger_seconds=0.1) as (server, _, connect):
        reader, writer = await connect(
            b"POST /none HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        assert b"\r\nConnection: close\r\n" in head
        writer.write(b"zz\r\n" * 1000)
        assert b"404" in await ended(reader)
        assert server.refusals[Refusal.MALFORMED] == 0


async def test_a_stop_does_not_wait_for_a_handler_that_hangs():
    async with guarded(shutdown_seconds=0.05) as (server, site, connect):
        reader, _ = await connect(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: site.running == 1)
        await server.stop()
        assert await ended(reader) == b""
        await until(lambda: server.connections == 0)


async def test_a_stop_does_not_wait_for_a_client_that_does_not_read():
    async with guarded(shutdown_seconds=0.05) as (server, _, connect):
        reader, _ = await connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readexactly(1)
        await server.stop()
        await until(lambda: server.connections == 0)


async def test_an_address_in_use_is_an_error_and_stop_does_no_harm():
    async with guarded() as (server, _, _):
        _, port = server.address
        other = GuardedServer(web.Application())
        with pytest.raises(OSError, match="in use"):
            await other.start("127.0.0.1", port)
        await other.stop()
