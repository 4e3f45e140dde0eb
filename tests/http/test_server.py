"""The guarded web server against misbehaving clients."""

import asyncio
import errno
import logging
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sidecar.http.connections import Refusal
from tests.http.servers import ODDITY, ended, get, guarded, response
from tests.waiting import until


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_connection_without_a_whole_request_head_is_closed():
    """Neither the first one nor one after a response.

    A busy machine may need a second for the whole one before it.
    """
    beginnings = (b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\nX-A")
    async with guarded(idle_seconds=4.0) as (server, _, connect):
        opened = [
            (before, sent, *await connect(before)) for before in (b"", get()) for sent in beginnings
        ]
        for before, sent, reader, writer in opened:
            if before:
                assert await response(reader) == b"200 quick"
            writer.write(sent)
        assert [await ended(reader) for _, _, reader, _ in opened] == [b""] * 6
        await until(lambda: len(server.connections.open), 0)


async def test_a_connection_whose_request_head_trickles_is_closed():
    """Bytes now and then do not extend the deadline of a request head."""
    async with guarded(idle_seconds=0.1) as (_, _, connect):
        reader, writer = await connect(b"GET / HTTP/1.1\r\n")

        async def trickle():
            while True:
                writer.write(b"X-A: b\r\n")
                await asyncio.sleep(0.002)

        trickling = asyncio.create_task(trickle())
        assert await ended(reader) == b""
        trickling.cancel()


async def test_a_handler_may_take_longer_than_the_deadline_of_a_request_head():
    """The deadline is for the client to send, not for the sidecar to answer."""
    async with guarded(idle_seconds=4.0) as (_, site, connect):
        reader, _ = await connect(get("/slow"))
        await until(lambda: site.running, 1)
        other, _ = await connect()
        # The deadline has passed for another, so for this one as well.
        assert await ended(other) == b""
        site.go_on.set()

        assert await response(reader) == b"200 slow"


async def test_past_the_limit_the_oldest_connection_gives_way():
    """So a probe or a scrape always gets in; the others stay open."""
    async with guarded(max_connections=2) as (server, _, connect):
        (first, _), (second, writer) = await connect(get()), await connect(get())
        assert [await response(first), await response(second)] == [b"200 quick"] * 2
        third, _ = await connect(get())
        assert await response(third) == b"200 quick"
        assert await ended(first) == b""
        writer.write(get())

        assert await response(second) == b"200 quick"

        assert len(server.connections.open) == 2
        assert server.connections.refusals[Refusal.GAVE_WAY] == 1


async def test_a_connection_that_the_server_no_longer_reads_gives_way():
    """One whose body waits unread is cut, and its handler ends."""
    async with guarded(max_connections=1) as (server, site, connect):
        _, writer = await connect(get("/slow", "Content-Length: 99999999"))
        await until(lambda: site.running, 1)
        (connection,) = server.connections.open
        writer.write(bytes(1024 * 1024))  # more than aiohttp takes without a reader
        await until(connection.transport.is_reading, expected=False)
        await connect()
        await until(lambda: (server.connections.refusals[Refusal.GAVE_WAY], site.running), (1, 0))


async def test_a_flood_of_silent_connections_keeps_no_probe_out_and_leaves_no_descriptor():
    """Connections that send nothing give way to the probe, and all are closed in the end."""
    async with guarded() as (server, _, connect):
        before = descriptors()
        with ExitStack() as clients:
            for _ in range(120):  # all begun before the event loop runs again
                client = clients.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", server.port))
            await until(lambda: server.connections.refusals[Refusal.GAVE_WAY], 120 - 64)
            reader, writer = await connect(get())
            assert await response(reader) == b"200 quick"
            assert len(server.connections.open) == 64
            writer.close()
        await until(lambda: len(server.connections.open), 0)
        await until(lambda: descriptors() <= before)  # others may close some of theirs meanwhile


async def test_a_request_that_is_not_http_is_answered_and_counted_but_not_quoted(caplog):
    """What it sends may be a secret, so it is in no answer and in no log."""
    caplog.set_level(logging.DEBUG)
    async with guarded() as (server, _, connect):
        reader, _ = await connect(get("/", "no-colon-but-a-secret"))
        answer = await ended(reader)

        assert b" 400 " in answer
        assert b"secret" not in answer
        assert b"aiohttp" not in answer
        assert server.connections.refusals[Refusal.MALFORMED] == 1

    assert "secret" not in caplog.text


@pytest.mark.parametrize("path", ["/", "/none", "/failing"])
async def test_every_response_has_the_security_headers_and_no_version(path):
    """Of a page, of a path that does not exist, and of a handler that raises."""
    async with guarded() as (_, _, connect):
        reader, _ = await connect(get(path, "Connection: close"))
        head = (await ended(reader)).partition(b"\r\n\r\n")[0].decode().lower().splitlines()

    assert "server: specdec-sidecar" in head
    assert {
        "x-content-type-options: nosniff",
        "x-frame-options: deny",
        "referrer-policy: no-referrer",
    } <= set(head)


async def test_a_failing_handler_is_counted_each_time_and_logged_once_by_its_type():
    """The text of its error may quote the request."""
    with capture_logs() as logs:
        async with guarded() as (server, _, connect):
            for _ in range(2):
                reader, _ = await connect(get("/failing"))
                assert b" 500 " in await reader.readline()

            assert server.connections.refusals[Refusal.INTERNAL] == 2

    assert [entry["reason"] for entry in logs] == ["RuntimeError"]
    assert ODDITY not in str(logs)


@pytest.mark.parametrize("framing", ["Content-Length: 500000", "Transfer-Encoding: chunked"])
async def test_a_request_body_is_not_read(framing):
    """However it is framed: the connection closes after the response."""
    async with guarded() as (server, _, connect):
        reader, _ = await connect(get("/", framing) + b"1\r\na\r\n" * 80_000)
        assert (await ended(reader)).startswith(b"HTTP/1.1 200 ")
        await until(lambda: len(server.connections.open), 0)


async def test_without_file_descriptors_the_server_pauses_counts_and_goes_on(monkeypatch):
    """A failure to accept ends neither the server nor the next connection."""
    failures = [errno.EMFILE, errno.ECONNABORTED]
    accept = socket.socket.accept

    def failing(listener):
        client, address = accept(listener)
        if failures:
            client.close()
            raise OSError(failures.pop(0), "it fails")
        return client, address

    monkeypatch.setattr(socket.socket, "accept", failing)
    async with guarded() as (server, _, connect):
        for expected in (b"", b"", b"HTTP/1.1 200 OK"):
            reader, _ = await connect(get("/", "Connection: close"))
            assert (await ended(reader)).partition(b"\r\n")[0] == expected

        assert server.connections.refusals[Refusal.NOT_ACCEPTED] == 2


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_while_the_server_stops_is_closed(turns):
    """In whatever turn of the event loop it is."""
    async with guarded() as (server, _, connect):
        reader, _ = await connect(get())
        assert await response(reader) == b"200 quick"  # so the server waits for the next
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.stop()
            late, writer = await asyncio.open_connection(sock=client)
            assert await ended(late) == b""
            writer.close()


async def test_a_handler_may_end_while_the_server_stops():
    """A scrape that is under way when the Pod ends still gets its response."""
    async with guarded(shutdown_seconds=60) as (server, site, connect):
        reader, _ = await connect(get("/slow"))
        await until(lambda: site.running, 1)
        stopping = asyncio.create_task(server.stop())
        site.go_on.set()
        assert await response(reader) == b"200 slow"
        await stopping

        assert len(server.connections.open) == 0


@pytest.mark.parametrize("sent", [get("/slow"), get("/large"), b""])
async def test_a_stop_waits_for_no_client_longer_than_its_limit(sent):
    """Not for a slow handler, a client that does not read, or one that sends nothing."""
    async with guarded(shutdown_seconds=0.05) as (server, site, connect):
        reader, _ = await connect(sent)
        await until(lambda: (len(server.connections.open), site.requests), (1, bool(sent)))
        await server.stop()
        await ended(reader)
        await until(lambda: len(server.connections.open), 0)
