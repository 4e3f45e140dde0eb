"""Serving on an address, for as long as a block lasts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sidecar.http.guard import GuardedServer
from sidecar.settings.addresses import Address


@asynccontextmanager
async def serving(server: GuardedServer, address: Address) -> AsyncIterator[Address]:
    """Runs ``server``; gives the address in force, which has the real port if port 0 was asked for.

    Raises:
        OSError: the address can't be bound.
    """
    host, port = await server.start(address.host, address.port)
    try:
        yield Address(host, port)
    finally:
        await server.stop()
