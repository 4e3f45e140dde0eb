"""Floods of the proxy."""

import asyncio
import socket
from contextlib import AsyncExitStack
from itertools import islice, product

from benchmarks.floods.target import HOST, MOST_CLIENTS, POST, PROBE, Effect, Target, abort


async def heads(target: Target) -> Effect:
    """Row 1: 20 heads of 64 KB with 8,125 options and 2,500 lines of Connection."""
    options = b",".join(bytes(option) for option in islice(product(b"abcdefghijklmnopqrstuvwxyz", repeat=3), 8125))
    head = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: " + options + b"\r\n" + b"Connection:\r\n" * 2500 + b"\r\n"
    usual = b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 65_000 + b"\r\n\r\n"
    costs = []
    for request in (usual, head):
        before = target.cpu()
        for _ in range(40):
            await target.ask(request)
        costs.append((target.cpu() - before) / 40 * 1000)
    text = f"{costs[1]:.1f} ms of CPU a request, one of the same size with one header {costs[0]:.1f}"
    return text, costs[1] / max(costs[0], 0.25)


async def chunks(target: Target) -> Effect:
    """Row 2: a body of 10.5 MB in one-byte chunks."""
    before = target.cpu()
    status = await target.ask(POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 10_500_000 + b"0\r\n\r\n")
    cpu = target.cpu() - before
    return f"{status[9:12].decode()}, {cpu:.2f} s of CPU", cpu


async def bodies(target: Target) -> Effect:
    """Row 3: 1,000 bodies of 1 MB, each 1 kB short of its end."""
    before = target.memory()
    async with AsyncExitStack() as stack:
        for _ in range(1000):
            _, writer = await target.connect()
            stack.callback(abort, writer)
            writer.write(POST + b"Content-Length: 1000000\r\n\r\n" + b"x" * 999_000)
            async with asyncio.timeout(60):
                await writer.drain()
        await asyncio.sleep(1)
        held = target.memory()
    await asyncio.sleep(1)
    return f"RSS {before:.0f}, then {held:.0f}, afterwards {target.memory():.0f} MiB", target.memory("VmHWM")


async def idle(target: Target) -> Effect:
    """Row 5: as many idle clients as allowed, and ten that come after them."""
    async with AsyncExitStack() as stack:
        for _ in range(MOST_CLIENTS):
            reader, writer = await target.connect()
            stack.callback(abort, writer)
            writer.write(PROBE)
            async with asyncio.timeout(60):
                await reader.readline()
        served = [await target.ask() for _ in range(10)]
    refused = 10 - sum(b" 200 " in status for status in served)
    return f"{10 - refused} of 10 served", refused


async def readers(target: Target) -> Effect:
    """Row 7: 500 clients that read nothing of a large response."""
    before = target.memory()
    async with AsyncExitStack() as stack:
        for _ in range(500):
            peer = socket.socket()
            stack.callback(peer.close)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(("127.0.0.1", target.port))
            peer.send(b"GET /fast HTTP/1.1\r\n" + HOST + b"\r\n")
        for _ in range(10):
            held = target.memory()
            await asyncio.sleep(2)
            if target.memory() == held:
                break
    await asyncio.sleep(1)
    return f"RSS {before:.0f}, then {held:.0f}, afterwards {target.memory():.0f} MiB", target.memory("VmHWM")


async def tiny(target: Target) -> Effect:
    """Row 10: 300 bodies of which one byte arrives."""
    before = target.to_upstream()
    async with AsyncExitStack() as stack:
        for _ in range(300):
            _, writer = await target.connect()
            stack.callback(abort, writer)
            writer.write(POST + b"Content-Length: 500\r\n\r\n{")
        await asyncio.sleep(1)
        more = target.to_upstream() - before
        return f"{more} connections to vLLM", more


async def full(target: Target) -> Effect:
    """Row 3: as many clients as allowed, each with a stream in progress whose bodies are observed."""
    before = target.memory()
    body = b'{"model": "m", "stream": true, "temperature": 0.5, "prompt": "%s"}' % (b"x" * 4000)
    request = POST + b"X-Hang: 1\r\n"
    async with AsyncExitStack() as stack:
        for _ in range(MOST_CLIENTS):
            reader, writer = await target.connect()
            stack.callback(abort, writer)
            writer.write(request + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            async with asyncio.timeout(60):
                await reader.readuntil(b"data: ")
        held = target.memory()
    await asyncio.sleep(1)
    return f"RSS {before:.0f}, then {held:.0f}, afterwards {target.memory():.0f} MiB", target.memory("VmHWM")
