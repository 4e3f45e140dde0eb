"""The proxy as a request source."""

import pytest

from sidecar.requests.observe.usage import AskUsage
from sidecar.requests.proxy import source as source_module
from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.source import ProxySource
from sidecar.settings.addresses import Address
from tests.requests.proxy.proxy_doubles import Log, until
from tests.requests.proxy.proxy_tools import raw_server

GOOD = b'{"version": "0.32.0"}'


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'{"version": "\xff\xfe"}', b'{"a": ' + b"[" * 4000, b'{"version": null}', b"x" * 1_000_000],
    ids=["empty", "none", "not UTF-8", "deep", "null", "large"],
)
async def test_the_version_is_asked_for_until_it_is_known(monkeypatch, body):
    monkeypatch.setattr(source_module, "_EVERY", 0.01)
    asked, bodies = [], [body, body]

    async def script(connection):
        await connection.request()
        asked.append(connection)
        sent = bodies.pop() if bodies else GOOD
        await connection.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(sent) + sent)

    async with raw_server(script) as server:
        source = ProxySource(
            listen=Address("127.0.0.1", 0),
            upstream=Upstream("127.0.0.1", server.port),
            options=ProxyOptions(pool_warm=0),
            observe_bytes=1000,
            ask_usage=AskUsage.KNOWN,
            drain_seconds=0,
        )
        async with source.open(None, Log(), offsets=False):
            await until(lambda: len(asked) == 3)
