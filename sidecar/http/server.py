"""Serving an application on an address, for as long as a block lasts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from sidecar.http.guard import GuardedServer
from sidecar.settings.addresses import Address


@asynccontextmanager
async def serving(app: web.Application, address: Address) -> AsyncIterator[Address]:
    """Serves ``app``; gives the address in force, which has the real port where port 0 was asked for.

    Raises:
        OSError: the address can't be had.
    """
    server = GuardedServer(app)
    host, port = await server.start(address.host, address.port)
    try:
        yield Address(host, port)
    finally:
        await server.stop()
