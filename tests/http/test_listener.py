"""Accepting connections: how many TLS handshakes run at once, and who gives way."""

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack, asynccontextmanager

import pytest

from sidecar.http import listener as listener_module
from sidecar.http.access import Access
from sidecar.http.listener import TLS, Listener
from tests.http.certificates import Authority
from tests.http.test_guard import until
from tests.requests.proxy.proxy_doubles import Log

MOST = 256


class Hello(asyncio.Protocol):
    """Greets, so that a client knows that its connection is open."""

    def connection_made(self, transport):
        transport.write(b"hello")


@asynccontextmanager
async def listening(authority, host="127.0.0.1"):
    """A listener, its port, and the reasons that it counted."""
    refused = Counter()
    access = None if authority is None else Access(authority.web_config(), Log())
    listener = Listener(Hello, access, 600.0, lambda reason: refused.update([reason]), Log())
    _, port = await listener.start(host, 0, backlog=1024)
    try:
        yield listener, port, refused
    finally:
        listener.close()
        await until(lambda: not listener._opening)


def silent(stack, port, count, source="127.0.0.1"):
    """``count`` connections that have sent nothing, all begun before the event loop runs again."""
    clients = []
    for _ in range(count):
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        client.bind((source, 0))
        client.connect_ex(("127.0.0.1", port))
        clients.append(client)
    return clients


def addresses(listener):
    return Counter(address for address, _ in listener._opening.values())


async def test_a_burst_of_silent_clients_never_exceeds_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(listener_module, "_PATIENCE", 0.05)
    with ExitStack() as stack:
        async with listening(Authority.new(tmp_path)) as (listener, port, refused):
            silent(stack, port, 450)
            while refused[TLS] < 450 - MOST:  # those that gave way, until the last of the backlog is accepted
                assert len(listener._opening) <= MOST
                await asyncio.sleep(0)
            assert len(listener._opening) == MOST


async def test_proper_clients_wait_for_the_places_that_silent_ones_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(listener_module, "_PATIENCE", 600)
    authority = Authority.new(tmp_path)
    context = authority.trusting()

    async def greeting(client):
        reader, writer = await asyncio.open_connection(sock=client, ssl=context, server_hostname="localhost")
        try:
            return await reader.readexactly(5)
        finally:
            writer.transport.abort()

    with ExitStack() as stack:
        async with listening(authority) as (_, port, refused):
            silent(stack, port, MOST - 6)
            clients = silent(stack, port, 100)
            assert set(await asyncio.gather(*map(greeting, clients))) == {b"hello"}
            assert not refused


async def test_the_oldest_of_the_busiest_address_gives_way(tmp_path, monkeypatch):
    monkeypatch.setattr(listener_module, "_PATIENCE", 0.05)
    with ExitStack() as stack:
        async with listening(Authority.new(tmp_path)) as (listener, port, refused):
            silent(stack, port, 6, "127.0.0.2")
            await until(lambda: len(listener._opening) == 6)
            silent(stack, port, 250, "127.0.0.3")
            await until(lambda: len(listener._opening) == MOST)
            second = list(listener._opening)[6]
            assert not refused
            silent(stack, port, 10, "127.0.0.4")
            await until(lambda: refused[TLS] == 10)
            assert second.done()
            assert addresses(listener) == {"127.0.0.2": 6, "127.0.0.3": 240, "127.0.0.4": 10}


async def test_the_ipv6_wildcard_takes_ipv4_too():
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    async with listening(None, "::") as (_, port, _):
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, port)
            assert await reader.readexactly(5) == b"hello"
            writer.close()
