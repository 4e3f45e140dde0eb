"""A stand-in for the engine during floods, one process: prints its port, answers whatever is complete."""

import asyncio
import re
from itertools import count
from typing import cast

import uvloop

from benchmarks.core.pages import real_page

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_PAGE = real_page()
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n%b"
HANG = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HANG += b"6\r\ndata: \r\n"  # a stream that has begun
FAST_BYTES = 50_000_000
FAST = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % FAST_BYTES
_PIECE = bytes(65_536)
_ENGINES = count(step=9000)


def page(head: bytes) -> bytes:
    """A real page; under ``/engines`` a page with 9,000 engines that no earlier page had."""
    body = _PAGE
    if head.startswith(b"GET /engines/"):
        line = b'vllm:num_requests_running{engine="%d",model_name="m"} 1.0\n'
        first = next(_ENGINES)
        body = b"# TYPE vllm:num_requests_running gauge\n" + b"".join(line % n for n in range(first, first + 9000))
    return PAGE % (len(body), body)


class Engine(asyncio.Protocol):
    """Reads bodies and drops them; ``/fast`` gets a large response as fast as the client reads it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.head = b""
        self.left = 0  # bytes of a body of known length
        self.chunked = False
        self.tail = b""
        self.fast = 0
        self.writable = True

    def data_received(self, data: bytes) -> None:
        if self.left:
            self.left -= len(data)
        elif self.chunked:
            self.tail = (self.tail + data)[-5:]
        else:
            self.head += data
            head, found, rest = self.head.partition(b"\r\n\r\n")
            if not found:
                return
            length = _LENGTH.search(head)
            self.left = int(length[1]) - len(rest) if length else 0
            self.chunked = b"chunked" in head
            self.tail = rest[-5:]
        if self.left <= 0 and (not self.chunked or self.tail == b"0\r\n\r\n"):
            self.answer()

    def answer(self) -> None:
        head, self.head, self.left, self.chunked, self.tail = self.head, b"", 0, False, b""
        if head.startswith(b"GET /fast"):
            self.transport.write(FAST)
            self.fast = FAST_BYTES
            self.resume_writing()
        elif b"X-Hang:" in head:
            self.transport.write(HANG)
        else:
            self.transport.write(page(head) if b"/metrics" in head.partition(b"\r\n")[0] else OK)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        while self.fast > 0 and self.writable:
            self.transport.write(_PIECE[: self.fast])
            self.fast -= len(_PIECE)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
