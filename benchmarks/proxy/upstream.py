"""The upstream, one process: ``python -m benchmarks.proxy.upstream stream|json``; prints its port.

It also serves a page of metrics that grow, which the sidecar polls.

Streams are paced by a plain loop, because an event loop's timers have steps of a millisecond and would send in bursts.
"""

import asyncio
import heapq
import selectors
import socket
import sys
import time
from typing import cast

import uvloop

from benchmarks.core.pages import later, real_page
from benchmarks.proxy.wire import (
    CHUNK_SECONDS,
    EVENT,
    JSON_HEAD,
    JSON_REPLY,
    PAGE_HEAD,
    STREAM_HEAD,
    STREAM_USAGE,
    chunk,
)


class Pages:
    """The metrics page, grown at every poll."""

    def __init__(self) -> None:
        page = real_page()
        self.bodies = [later(page, poll) for poll in range(100)]
        self.polls = 0

    def answer(self) -> bytes:
        body = self.bodies[min(self.polls, len(self.bodies) - 1)]
        self.polls += 1
        return PAGE_HEAD % len(body) + body


class Json(asyncio.Protocol):
    """Answers each request once its body, of known size, has arrived."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if head.startswith(b"GET "):
            if end:
                self.buffer = b""
                self.transport.write(self.pages.answer())
        elif end and len(body) >= int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            self.buffer = b""
            self.transport.write(JSON_HEAD + JSON_REPLY)


class Streams:
    """Sends each stream its chunks, spread evenly over the interval."""

    def __init__(self, listener: socket.socket) -> None:
        self.selector = selectors.DefaultSelector()
        self.listener = listener
        self.selector.register(listener, selectors.EVENT_READ)
        self.due: list[tuple[int, int, socket.socket, int, int]] = []
        self.started = 0
        self.pages = Pages()

    def run(self) -> None:
        looked = 0
        while True:
            now = time.monotonic_ns()
            while self.due and self.due[0][0] <= now:
                self.send(*heapq.heappop(self.due))
                now = time.monotonic_ns()
            if now - looked > 2_000_000:
                self.look()
                looked = now
            wake = min(self.due[0][0] if self.due else now + 2_000_000, now + 2_000_000)
            time.sleep(max(wake - time.monotonic_ns(), 0) / 1e9)

    def look(self) -> None:
        for key, _ in self.selector.select(0):
            peer = cast("socket.socket", key.fileobj)
            if peer is self.listener:
                client, _ = peer.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.setblocking(False)
                self.selector.register(client, selectors.EVENT_READ)
                continue
            try:
                request = peer.recv(65536)
            except ConnectionError:
                request = b""
            if request.startswith(b"GET "):
                peer.setblocking(True)
                peer.sendall(self.pages.answer())
                peer.setblocking(False)
            elif request:
                count = int(request.rpartition(b'"max_tokens":')[2].partition(b",")[0].strip(b" }"))
                peer.send(STREAM_HEAD)
                self.started += 1
                phase = (self.started * 0.618) % 1  # spreads any number of streams evenly
                start = time.monotonic_ns() + int((0.5 + phase * CHUNK_SECONDS) * 1e9)
                heapq.heappush(self.due, (start, self.started, peer, 0, count))
            else:
                self.selector.unregister(peer)
                peer.close()

    def send(self, when: int, order: int, peer: socket.socket, number: int, count: int) -> None:
        try:
            if number == count:
                peer.send(chunk(STREAM_USAGE % count) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
                return
            peer.send(chunk(EVENT % (time.monotonic_ns(), number)))
        except OSError:
            return  # the client has gone or reads too slowly: it will report missing chunks
        heapq.heappush(self.due, (when + int(CHUNK_SECONDS * 1e9), order, peer, number + 1, count))


async def json() -> None:
    pages = Pages()
    server = await asyncio.get_running_loop().create_server(lambda: Json(pages), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def stream() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    Streams(listener).run()


if __name__ == "__main__":
    if sys.argv[1] == "stream":
        stream()
    else:
        uvloop.run(json())
