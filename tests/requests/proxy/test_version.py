"""Learning vLLM's version from whatever answers."""

import asyncio

import pytest

from sidecar.requests.observe.usage import AskUsage, UsageAsker
from sidecar.requests.proxy import version as version_module
from sidecar.requests.proxy.options import Upstream
from sidecar.requests.proxy.version import follow_version
from tests.requests.proxy.proxy_doubles import until
from tests.requests.proxy.proxy_tools import raw_server

GOOD = b'{"version": "0.32.0"}'


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'{"version": "\xff\xfe"}', b'{"a": ' + b"[" * 4000, b'{"version": null}', b"x" * 1_000_000],
    ids=["empty", "none", "not UTF-8", "deep", "null", "large"],
)
async def test_an_answer_that_is_none_is_asked_for_again(monkeypatch, body):
    monkeypatch.setattr(version_module, "_EVERY", 0.01)
    bodies = [body, body]

    async def script(connection):
        await connection.request()
        sent = bodies.pop() if bodies else GOOD
        await connection.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(sent) + sent)

    asker = UsageAsker(AskUsage.KNOWN, max_bytes=1000)
    async with raw_server(script) as server:
        task = asyncio.create_task(follow_version(Upstream("127.0.0.1", server.port), asker))
        await until(lambda: asker.version == "0.32.0" or task.done())
        assert asker.version == "0.32.0"
        bodies.append(body)
        asker.forget()
        await until(lambda: asker.version == "0.32.0" or task.done())
        assert asker.version == "0.32.0"
        task.cancel()
