"""Real servers and clients around a proxy: raw sockets where the wire matters."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from socket import SO_LINGER, SOL_SOCKET
from typing import Self

from hypothesis import strategies as st

from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.server import ProxyServer
from tests.requests.proxy.proxy_doubles import Log, Recorder

HOST = b"Host: vllm:8000\r\n"
GET = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Reply:
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None


class Client:
    """A connection that sends exactly what it is given and parses replies strictly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Reply:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text[:-4].split("\r\n")
        version, status, reason = first.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = [tuple(line.split(": ", 1)) for line in lines]
        return Reply(int(status), reason, headers, b"")

    async def chunk(self) -> bytes:
        size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
        data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def reply(self, method: str = "GET") -> Reply:
        reply = await self.head()
        if method == "HEAD" or reply.status in {204, 304} or reply.status < 200:
            return reply
        if reply.header("Transfer-Encoding") == "chunked":
            assert reply.header("Content-Length") is None
            while data := await self.chunk():
                reply.body += data
        elif reply.header("Content-Length") is not None:
            reply.body = await self.reader.readexactly(int(reply.header("Content-Length")))
        else:
            reply.body = await self.reader.read()
        return reply

    async def ask(self, data: bytes, method: str = "GET") -> Reply:
        await self.send(data)
        return await self.reply(method)

    async def closed(self) -> bytes:
        """What still arrives until the proxy closes."""
        async with asyncio.timeout(120):
            return await self.reader.read()

    def kill(self) -> None:
        """Reset the connection: unlike a plain end, this arrives even where the other side has stopped reading."""
        if not self.writer.transport.is_closing():
            socket = self.writer.get_extra_info("socket")
            socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass
class Connection:
    """One connection that the upstream took."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    received: bytes = b""
    closed: bool = False

    async def read(self, size: int = 65536) -> bytes:
        data = await self.reader.read(size)
        self.received += data
        self.closed = self.closed or not data
        return data

    async def request(self) -> bytes:
        """The head of one request; its body is read only as far as Content-Length goes."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.received += head
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                self.received += await self.reader.readexactly(int(line.split(b":")[1]))
        return head

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def watch_close(self) -> None:
        """Read until the proxy closes."""
        with suppress(ConnectionError):
            while await self.read():
                pass
        self.closed = True


Script = Callable[[Connection], Awaitable[None]]


@dataclass
class Server:
    """A raw upstream that plays a script on each connection."""

    script: Script
    connections: list[Connection] = field(default_factory=list)
    port: int = 0
    tasks: list[asyncio.Task] = field(default_factory=list)

    @property
    def received(self) -> bytes:
        return b"".join(connection.received for connection in self.connections)

    async def serve(self, reader, writer) -> None:
        connection = Connection(reader, writer)
        self.connections.append(connection)
        self.tasks.append(asyncio.current_task())
        try:
            await self.script(connection)
        except (ConnectionError, asyncio.IncompleteReadError):
            connection.closed = True
        except asyncio.CancelledError:
            pass  # the end of the test; asyncio's server would log it as an error
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(script: Script, port: int = 0, **options):
    server = Server(script)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", port, **options)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for connection in server.connections:
            connection.writer.transport.abort()
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)


async def answering(connection: Connection) -> None:
    """A script: every request gets OK."""
    while True:
        await connection.request()
        await connection.send(OK)


def answer(data: bytes, *, close: bool = False) -> Script:
    """A script: every request gets ``data``."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(data)
            if close:
                return

    return script


class Proxy:
    """A running proxy with its observers and log."""

    def __init__(self, port: int, options: dict, *, observe=None, clock=time.monotonic, ssl=None, access=None):
        self.observers = []
        self.log = Log()
        settings = {"tick_seconds": 0.005, "pool_warm": 0, "linger_seconds": 5.0, "awaited_body_bytes": 0} | options
        self.server = ProxyServer(
            Upstream("127.0.0.1" if ssl is None else "localhost", port, ssl),
            ProxyOptions(**settings),
            observe or self._observe,
            clock,
            self.log,
            access=access,
        )
        self.port = 0
        self._clients = []

    def _observe(self, method, target, headers):
        self.observers.append(Recorder(method, target, headers))
        return self.observers[-1]

    @property
    def stats(self):
        return self.server.stats

    @property
    def observer(self) -> Recorder:
        assert len(self.observers) == 1
        return self.observers[0]

    async def __aenter__(self) -> Self:
        _, self.port = await self.server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_) -> None:
        for client in self._clients:
            client.kill()
        await self.server.drain(0)

    async def client(self, **options) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, **options))
        self._clients.append(client)
        return client


@asynccontextmanager
async def proxied(script: Script, *, observe=None, clock=time.monotonic, **options):
    """A raw upstream with a proxy in front of it."""
    async with raw_server(script) as server, Proxy(server.port, options, observe=observe, clock=clock) as proxy:
        yield proxy, server


places = st.lists(st.integers(0, 10_000), max_size=60)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The pieces of ``data``, cut at ``places``."""
    edges = [0, *sorted({place % len(data) for place in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]
