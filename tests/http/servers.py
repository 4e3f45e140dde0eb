"""A guarded server, plain or with a web configuration, and clients that say what they get."""

import asyncio
import base64
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from sidecar.http.server import GuardedServer, GuardOptions
from sidecar.settings.web_config import read_web_config

ODDITY = "an oddity"


def get(path="/", *headers):
    """A request as it is sent."""
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *headers, "", "")).encode()


def basic(user, password):
    """The value of the header ``Authorization``."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Site:
    """The handlers of the served app; ``slow`` waits for ``go_on``."""

    def __init__(self):
        self.go_on = asyncio.Event()
        self.requests = self.running = 0

    async def quick(self, request):
        return web.Response(text="quick")

    async def slow(self, request):
        self.requests += 1
        self.running += 1
        try:
            await self.go_on.wait()
        finally:
            self.running -= 1
        return web.Response(text="slow")

    async def large(self, request):
        self.requests += 1
        return web.Response(body=bytes(64 * 1024 * 1024))

    async def failing(self, request):
        raise RuntimeError(ODDITY)


@asynccontextmanager
async def guarded(web_config=None, **options):
    """The server, its site, and a function that connects and sends."""
    site, app = Site(), web.Application()
    app.router.add_get("/", site.quick)
    for path, handler in (
        ("open", site.quick),
        ("slow", site.slow),
        ("large", site.large),
        ("failing", site.failing),
    ):
        app.router.add_get(f"/{path}", handler)
    web_config = None if web_config is None else read_web_config(web_config)
    server = GuardedServer(
        app, GuardOptions(open_paths=frozenset({"/open"}), **options), web_config
    )
    _, server.port = await server.start("127.0.0.1", 0)
    opened = []

    async def connect(data=b"", **tls):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **tls)
        opened.append(writer)
        writer.write(data)
        return reader, writer

    try:
        yield server, site, connect
    finally:
        await server.stop()
        for writer in opened:
            writer.transport.abort()


async def ended(reader):
    """Everything received until the connection ends, however it ends.

    Fails if it does not within ten seconds.
    """
    data = b""
    try:
        async with asyncio.timeout(10):
            with suppress(OSError):
                while piece := await reader.read(65_536):
                    data += piece
    except TimeoutError:
        raise AssertionError(f"still open after 10 s, received {data[:1000]!r}") from None
    return data


async def response(reader):
    """The status and the body of the next response."""
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        return head.split(b" ")[1] + b" " + await reader.readexactly(length)
