"""Floods of the ports that no traffic passes through: the page, the OTLP receiver, the middleware's socket."""

import asyncio
import base64
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.floods.target import Effect, Target, probing

HEALTHY = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 10_500_000 + b"0\r\n\r\n"


async def page(target: Target) -> Effect:
    """Row 2: a body of 10.5 MB in one-byte chunks to the own page."""
    return await _chunked(target, b"GET /metrics HTTP/1.1\r\nHost: x\r\n")


async def export(target: Target) -> Effect:
    """Row 2: the same to the OTLP receiver."""
    return await _chunked(
        target, b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n", probe=False
    )


async def _chunked(target: Target, head: bytes, *, probe: bool = True) -> Effect:
    before = target.cpu()
    if probe:
        async with probing(target, HEALTHY, b"healthy\n"):
            status = await _send(target, head + CHUNKS)
    else:
        status = await _send(target, head + CHUNKS)
    await asyncio.sleep(3)  # what is still read after the answer counts
    cpu = target.cpu() - before
    return f"{status}, {cpu:.2f} s of CPU", cpu


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
            start = time.monotonic()
            assert b" 200 " in await target.ask(_authorized(b"a:secret"))
            target.waits.append(time.monotonic() - start)
            await asyncio.sleep(0.05)

    target.waits.clear()
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
