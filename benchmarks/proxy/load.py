"""The client, one process: ``python -m benchmarks.proxy.load stream|json PORT CONNECTIONS COUNT``; prints JSON.

``stream``: COUNT chunks on each of CONNECTIONS streams. ``json``: COUNT requests in all, one at a time per connection.
It connects only to 127.0.0.1, and stops by itself.
"""

import asyncio
import json
import sys
import time
from typing import cast

import uvloop

from benchmarks.proxy.wire import JSON_REPLY, MARK, NUMBER, TIME, completion

PATIENCE = 60.0  # seconds on top of what the load should take


class Stream(asyncio.Protocol):
    """Reads one stream and notes how old each chunk is."""

    def __init__(self, count: int, ages: list[int]) -> None:
        self.count, self.ages = count, ages
        self.done = asyncio.get_running_loop().create_future()
        self.seen = 0
        self.faults = 0
        self.held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(completion(self.count, stream=True))

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self.held + data
        at = data.find(MARK)
        while at >= 0:
            if data.find(b"\n\n", at) < 0:
                break
            event = data[at : at + NUMBER.stop]
            self.ages.append(now - int(event[TIME]))
            self.faults += int(event[NUMBER]) != self.seen
            self.seen += 1
            at = data.find(MARK, at + 1)
        self.held = data[at:] if at >= 0 else b""
        if data.endswith(b"0\r\n\r\n") and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if not self.done.done():
            self.done.set_result(None)


class Requests(asyncio.Protocol):
    """Sends the next request when the last reply is whole."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done = asyncio.get_running_loop().create_future()
        self.request = completion(200, stream=False)
        self.held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.held += data
        if not self.held.endswith(JSON_REPLY):
            return
        self.held = b""
        self.left -= 1
        if self.left:
            self.transport.write(self.request)
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if not self.done.done():
            self.done.set_result(None)


async def streams(port: int, connections: int, count: int) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    ages: list[int] = []
    clients = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: Stream(count, ages), "127.0.0.1", port)
        clients.append(client)
    await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), count * 0.02 + PATIENCE)
    ages.sort()
    return {
        "chunks": len(ages),
        "lost": connections * count - sum(client.seen for client in clients),
        "disordered": sum(client.faults for client in clients),
        "p50_us": ages[len(ages) // 2] / 1000,
        "p99_us": ages[len(ages) * 99 // 100] / 1000,
    }


async def requests(port: int, connections: int, count: int) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    start = time.monotonic()
    clients = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: Requests(count // connections), "127.0.0.1", port)
        clients.append(client)
    await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), count * 0.001 + PATIENCE)
    lost = sum(client.left for client in clients)
    return {"requests": count - lost, "lost": lost, "seconds": time.monotonic() - start}


if __name__ == "__main__":
    run = streams if sys.argv[1] == "stream" else requests
    print(json.dumps(uvloop.run(run(*map(int, sys.argv[2:])))))
