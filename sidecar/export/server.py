"""Serving an application on an address, for as long as a block lasts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from sidecar.settings.places import Address

_SHUTDOWN = 2.0  # seconds that answers under way have to end


@asynccontextmanager
async def serving(app: web.Application, address: Address) -> AsyncIterator[Address]:
    """Serves ``app``; gives the address in force, which has the real port where port 0 was asked for.

    Raises:
        OSError: the address can't be had.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN)
    await runner.setup()
    try:
        await web.TCPSite(runner, address.host, address.port).start()
        host, port = runner.addresses[0][:2]
        yield Address(host, port)
    finally:
        await runner.cleanup()
