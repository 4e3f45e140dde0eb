"""A guarded server, plain or with a web configuration, and clients that say what they get."""

import asyncio
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from sidecar.http.connection import GuardOptions
from sidecar.http.guard import GuardedServer
from sidecar.settings.files import read_web_config

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ODDITY = "an oddity"


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


class Site:
    """What the handlers of the served app wait for, and how many run."""

    def __init__(self):
        self.go_on = asyncio.Event()
        self.running = 0
        self.large_sent = 0

    async def quick(self, request):
        return web.Response(text="quick")

    async def slow(self, request):
        self.running += 1
        try:
            await self.go_on.wait()
        finally:
            self.running -= 1
        return web.Response(text="slow")

    async def large(self, request):
        self.large_sent += 1
        return web.Response(body=bytes(64 * 1024 * 1024))

    async def failing(self, request):
        raise RuntimeError(ODDITY)


@asynccontextmanager
async def guarded(web_config=None, **options):
    """The server, its site, and a function that connects and sends."""
    site, app = Site(), web.Application()
    for path, handler in (
        ("/", site.quick),
        ("/open", site.quick),
        ("/slow", site.slow),
        ("/large", site.large),
        ("/failing", site.failing),
    ):
        app.router.add_get(path, handler)
    server = GuardedServer(
        app,
        GuardOptions(open_paths=frozenset({"/open"}), **options),
        None if web_config is None else read_web_config(web_config),
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
    """Everything received until the connection ends, however it ends."""
    data = b""
    with suppress(OSError):
        while piece := await reader.read(65_536):
            data += piece
    return data


async def response(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return head.split(b" ")[1] + b" " + await reader.readexactly(length)
