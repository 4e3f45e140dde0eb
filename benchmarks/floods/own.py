"""Floods of the ports that no traffic passes through: the page, the OTLP receiver, the middleware's socket."""

import asyncio
import base64
import gzip
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from itertools import count
from pathlib import Path

import msgspec

from benchmarks.floods.target import Effect, Target, abort
from sidecar.requests.middleware.wire import MAX_PACKET_EVENTS, VERSION, Packet
from sidecar.requests.record import RequestStart

HEALTHY = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
EXPORT = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 10_500_000 + b"0\r\n\r\n"


async def page(target: Target) -> Effect:
    """Row 2: a body of 10.5 MB in one-byte chunks to the own page."""
    return await _chunked(target, b"GET /metrics HTTP/1.1\r\nHost: x\r\n")


async def export(target: Target) -> Effect:
    """Row 2: the same to the OTLP receiver."""
    return await _chunked(target, EXPORT)


async def _chunked(target: Target, head: bytes) -> Effect:
    before = target.cpu()
    status = await _send(target, head + CHUNKS)
    await asyncio.sleep(3)  # reading that continues after the answer counts too
    cpu = target.cpu() - before
    return f"{status}, {cpu:.2f} s of CPU", cpu


async def members(target: Target) -> Effect:
    """Row 8: 200,000 empty gzip members, 4 MB, to the OTLP receiver, eight times."""
    body = gzip.compress(b"") * 200_000
    request = EXPORT + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    before = target.cpu()
    statuses = [await _send(target, request) for _ in range(8)]
    cpu = (target.cpu() - before) / len(statuses)
    return f"{statuses[0]}, {cpu:.3f} s of CPU each", cpu


async def silent(target: Target) -> Effect:
    """Row 4: 64 clients that send nothing to the own page, and ten probes that come after them."""
    async with AsyncExitStack() as stack:
        for _ in range(64):
            stack.callback(abort, (await target.connect())[1])
        served = [await target.ask(HEALTHY) for _ in range(10)]
    refused = 10 - sum(b" 200 " in status for status in served)
    return f"{10 - refused} of 10 served", refused


async def scrapes(target: Target) -> Effect:
    """Row 6: 50 clients that read the page in a loop for 5 s; what counts is the other client, of the proxy."""
    begun = time.monotonic()

    async def scrape() -> int:
        for number in count():
            if time.monotonic() - begun > 5:
                return number
            await target.ask(METRICS)
        return 0

    pages = sum(await asyncio.gather(*(scrape() for _ in range(50))))
    return f"{pages / 5:.0f} pages a second", 0


async def engines(target: Target) -> Effect:
    """Row 13: vLLM's page has 9,000 engines, others at each of ten polls."""
    before = target.cpu()
    await asyncio.sleep(10)
    return f"{target.cpu() - before:.1f} s of CPU in 10 s", 0


async def starts(target: Target) -> Effect:
    """Row 9: four senders begin 65,536 requests each; 64 more connect and are silent; then another one is heard."""
    before = target.cpu()
    with ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(_sender(target))
        await asyncio.gather(*(asyncio.to_thread(_begin, stack.enter_context(_sender(target)), n) for n in range(4)))
        stack.enter_context(_sender(target)).send(msgspec.msgpack.encode(Packet(VERSION, {"internal": 7}, [], [])))
        for _ in range(50):
            await asyncio.sleep(0.1)
            if heard := b'reason="internal",source="middleware"} 7.0' in await _page(target):
                break
    return f"{target.cpu() - before:.1f} s of CPU, the last {'' if heard else 'not '}heard", 0 if heard else 1


@contextmanager
def _sender(target: Target) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(str(target.folder / "events.sock"))
        yield peer


async def _page(target: Target) -> bytes:
    reader, writer = await target.connect()
    writer.write(METRICS.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    page = await reader.read(-1)
    abort(writer)
    return page


def _begin(peer: socket.socket, sender: int) -> None:
    for first in range(0, 65_536, MAX_PACKET_EVENTS):
        ids = range(first, first + MAX_PACKET_EVENTS)
        events = [RequestStart(f"{sender}-{number}", time.time()) for number in ids]
        peer.send(msgspec.msgpack.encode(Packet(VERSION, {}, events, [])))


async def _send(target: Target, data: bytes) -> str:
    """The status; sends until the other side closes."""
    reader, writer = await target.connect()

    async def status() -> bytes:
        return (await reader.readline())[9:12]

    answer = asyncio.create_task(status())
    try:
        writer.write(data)
        async with asyncio.timeout(60):
            await writer.drain()
    except OSError:
        pass
    found = b"none" if answer.done() and answer.exception() else await answer
    writer.transport.abort()
    return found.decode() or "none"


async def passwords(target: Target) -> Effect:
    """Wrong passwords on 12 connections at a time for 5 s, and another client that sends the right one."""
    await target.ask(_authorized(b"a:secret"))
    before, begun, counts = target.cpu(), time.monotonic(), [0, 0]

    async def guess(number: int) -> None:
        while time.monotonic() - begun < 5:
            counts[b" 401 " in await target.ask(_authorized(b"a:%d %f" % (number, time.monotonic())))] += 1

    async def scrape() -> None:
        while time.monotonic() - begun < 5:
            assert b" 200 " in await target.ask(_authorized(b"a:secret"))
            await asyncio.sleep(0.05)

    await asyncio.gather(scrape(), *(guess(number) for number in range(12)))
    share = (target.cpu() - before) / (time.monotonic() - begun)
    text = f"{counts[1]} checked, {counts[0]} refused unchecked; {100 * share:.0f} % of a core"
    return text, target.memory("VmHWM")


def _authorized(credentials: bytes) -> bytes:
    return b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic %b\r\n\r\n" % base64.b64encode(credentials)


async def senders(target: Target) -> Effect:
    """Row 12: 100 senders to the middleware's socket of a sidecar that may open 64 files."""
    path = target.folder / "events.sock"
    with ExitStack() as stack:
        before, begun = target.cpu(), time.monotonic()
        for _ in range(100):
            peer = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
            peer.connect_ex(str(path))
        await asyncio.sleep(5)
        share = (target.cpu() - before) / (time.monotonic() - begun)
    lines = sum(b"cannot accept" in line for line in Path(target.folder / "log").read_bytes().splitlines())
    return f"{100 * share:.0f} % of a core; {lines} log lines", share
