"""The calls that an observer gets, that it can do no harm, and the records of exchanges that end unusually."""

import asyncio
import tracemalloc

import pytest

from sidecar.requests.proxy import observer as observer_module
from sidecar.requests.proxy.observer import OUT_OF_MEMORY, observer_factory
from tests.requests.proxy.proxy_doubles import Recorder, until
from tests.requests.proxy.proxy_tools import GET, HOST, answer, answering, proxied

POST = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}"
METHODS = ["request_piece", "request_end", "reply_head", "reply_piece", "finished"]


async def test_calls_come_in_order_and_finished_comes_once():
    async with proxied(answering) as (proxy, _):
        client = await proxy.client()
        await client.ask(POST)
        assert [call[0] for call in proxy.observer.calls] == ["request_head", *METHODS]
        assert (proxy.observer.request, proxy.observer.response) == (b"{}", b"ok")


@pytest.mark.parametrize("method", METHODS)
async def test_observer_that_raises_is_counted_and_changes_nothing(method):
    recorders = []

    def observe(*head):
        class Raising(Recorder):
            pass

        def fail(self, *_):
            self.calls.append((method,))
            raise RuntimeError

        setattr(Raising, method, fail)
        recorders.append(Raising(*head))
        return recorders[-1]

    async with proxied(answering, observe=observe) as (proxy, server):
        client = await proxy.client()
        for _ in range(2):
            assert (await client.ask(POST)).body == b"ok"
        assert server.received == POST * 2
        assert proxy.stats.observer_failures == 2
        assert proxy.stats.outcomes["completed"] == 2
        for recorder in recorders:
            seen = METHODS[: METHODS.index(method) + 1]
            expected = seen if method == "finished" else [*seen, "finished"]
            assert [call[0] for call in recorder.calls[1:]] == expected


async def test_factory_that_raises_or_declines_leaves_the_traffic_alone():
    answers = [None, RuntimeError]

    def observe(*_):
        now = answers.pop()
        if now is not None:
            raise now

    async with proxied(answering, observe=observe) as (proxy, _):
        client = await proxy.client()
        assert (await client.ask(POST)).body == b"ok"
        assert (await client.ask(POST)).body == b"ok"
        assert proxy.stats.observer_failures == 1
        assert proxy.stats.exchanges == 2


async def test_error_of_the_upstream_is_forwarded_and_observed_as_it_is():
    async with proxied(answer(b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nfail")) as (proxy, _):
        client = await proxy.client()
        reply = await client.ask(GET)
        assert (reply.status, reply.reason, reply.body) == (500, "Oh", b"fail")
        assert (proxy.observer.status, proxy.observer.outcome) == (500, "completed")


async def test_stats_add_up_and_start_complete():
    async with proxied(answering) as (proxy, _):
        before = proxy.stats
        assert set(before.outcomes.values()) | set(before.refused.values()) == {0}
        client = await proxy.client()
        await client.ask(GET)
        await client.ask(POST)
        await client.ask(b"nonsense\r\n\r\n")
        after = proxy.stats
        assert (after.exchanges, after.outcomes["completed"], after.refused["bad_request"]) == (2, 2, 1)
        assert before.exchanges == 0
        client.kill()
        await until(lambda: proxy.stats.client_connections == 0)
        assert (proxy.stats.upstream_connections, proxy.stats.upstream_idle) == (1, 1)


async def test_nothing_of_a_request_is_logged():
    async with proxied(answer(b"nonsense \xff secret-5\r\n\r\n", close=True)) as (proxy, _):
        for request in (
            b"GET /?key=secret-1 HTTP/1.1\r\n" + HOST + b"Authorization: Bearer secret-2\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: secret-3/\r\n\r\n",
            b"secret-4\r\n\r\n",
        ):
            client = await proxy.client()
            reply = await client.ask(request)
            assert reply.status >= 400
            assert b"secret" not in reply.body
        assert "secret" not in str(proxy.log.events)


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


async def test_requests_that_wait_for_their_response_keep_no_bodies():
    count, size = 40, 500_000
    whole = 0

    async def script(connection):
        nonlocal whole
        await connection.reader.readuntil(b"\r\n\r\n")
        left = size
        while left:
            left -= len(await connection.reader.read(left))
        whole += 1
        await connection.watch_close()

    observe = observer_factory(Sink(), max_bytes=1_048_576)
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size
    request = head + b'{"prompt": "' + b"x" * (size - 14) + b'"}'
    tracemalloc.start()
    try:
        async with proxied(script, observe=observe) as (proxy, _):
            for number in range(count):
                client = await proxy.client()
                await client.send(request)
                await until(lambda number=number: whole == number + 1)
            assert proxy.stats.exchanges == count
            assert tracemalloc.get_traced_memory()[0] < count * size / 4
    finally:
        tracemalloc.stop()


class Drops(Sink):
    def __init__(self):
        super().__init__()
        self.reasons = []

    def dropped(self, reason, count):
        self.reasons.append((reason, count))


async def test_bodies_past_the_common_budget_are_forwarded_unobserved_and_counted(monkeypatch):
    monkeypatch.setattr(observer_module, "_OBSERVED_BYTES", 1_000_000)
    sink = Drops()
    body = b'{"prompt": "' + b"x" * 399_986 + b'"}'
    request = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async with proxied(answering, observe=observer_factory(sink, max_bytes=1_048_576)) as (proxy, server):
        clients = [await proxy.client() for _ in range(4)]
        for client in clients:
            await client.send(request[:-1])
        await until(lambda: len(server.connections) == 4)
        await until(lambda: len(proxy.server._pool.open) == 4)
        for client in clients:
            assert (await client.ask(request[-1:])).body == b"ok"
        await until(lambda: len(sink.records) == 4)
        # The replies are not JSON, which is noted as well.
        assert sorted(reason for reason, _ in sink.reasons if reason != "reply_malformed") == [OUT_OF_MEMORY] * 2
        sink.reasons.clear()
        for client in clients:  # the memory is there again
            assert (await client.ask(request)).body == b"ok"
        await until(lambda: len(sink.records) == 8)
        assert {reason for reason, _ in sink.reasons} == {"reply_malformed"}
        assert server.received == b"".join([request] * 8)


async def test_a_sink_that_raises_leaves_the_common_budget_whole(monkeypatch):
    monkeypatch.setattr(observer_module, "_OBSERVED_BYTES", 1000)
    sink = Drops()

    def fail(record):
        raise RuntimeError

    body = b'{"prompt": "' + b"x" * 86 + b'"}'
    request = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    reply = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 600\r\n\r\n" + b"x" * 600
    observe = observer_factory(sink, max_bytes=1_048_576)
    async with proxied(answer(reply), observe=observe) as (proxy, _):
        client = await proxy.client()
        with monkeypatch.context() as patch:
            patch.setattr(sink, "finished", fail)
            for _ in range(3):
                assert (await client.ask(request)).status == 200
            assert proxy.stats.observer_failures == 3
        assert (await client.ask(request)).status == 200
        await until(lambda: sink.records)
        assert OUT_OF_MEMORY not in {reason for reason, _ in sink.reasons}
