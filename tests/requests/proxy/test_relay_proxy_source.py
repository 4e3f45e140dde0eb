"""What the ``proxy`` source makes of exchanges that end in unusual ways."""

import asyncio

import pytest

from sidecar.requests.proxy.observer import observer_factory
from tests.requests.proxy.relay_doubles import until
from tests.requests.proxy.relay_tools import HOST, proxied

EVENTS = {
    "/v1/completions": (b'data: {"choices":[{"index":0,"text":"a"}]}\n\n', b"data: [DONE]\n\n"),
    "/v1/chat/completions": (b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', b"data: [DONE]\n\n"),
    "/v1/messages": (
        b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ),
    "/v1/responses": (
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n',
        b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed"}}\n\n',
    ),
}


class Sink:
    def __init__(self):
        self.records = []

    def started(self, start): ...

    def finished(self, record):
        self.records.append(record)

    def dropped(self, reason, count): ...


@pytest.mark.parametrize("path", EVENTS)
@pytest.mark.parametrize(("last", "outcome"), [(True, "completed"), (False, "aborted")])
async def test_client_that_closes_is_an_abort_only_before_the_last_event(path, last, outcome):
    token, final = EVENTS[path]
    events = [token, token, final] if last else [token, token]

    async def script(connection):
        await connection.request()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        await connection.send(head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events))
        await connection.watch_close()  # the end of the body never comes

    sink = Sink()
    async with proxied(script, observe=observer_factory(sink, max_bytes=65_536)) as (proxy, server):
        client = await proxy.client()
        request = b"POST " + path.encode() + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 15\r\n\r\n"
        await client.send(request + b'{"stream":true}')
        async with asyncio.timeout(120):
            await client.reader.readuntil(events[-1])
        client.writer.close()
        await until(lambda: sink.records)
        assert [record.outcome for record in sink.records] == [outcome]
        await until(lambda: server.connections[0].closed)
