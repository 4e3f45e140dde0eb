"""Requesting usage in front of vLLM: what vLLM gets, what the client gets, and what the record contains."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sidecar.requests.observe.usage import AskedStream, AskUsage, UsageAsker
from sidecar.requests.proxy.observer import observer_factory
from sidecar.requests.record import AskedUsage, Outcome
from tests.requests.conftest import Sink
from tests.requests.proxy.proxy_doubles import until
from tests.requests.proxy.proxy_tools import HOST, proxied

RECORDED = json.loads(
    (Path(__file__).parents[2] / "data" / "exchanges" / "chat-stream-usage.without-metrics.json").read_text()
)
REPLY = RECORDED["body"].encode()
USAGE = REPLY.rindex(b'data: {"id"')
STAMP = b',"system_fingerprint":"vllm-0.32.0-5df78fb7"}\n\n'
EXPECTED = REPLY[: USAGE - 3] + STAMP + b"data: [DONE]\n\n"
REQUEST = {key: value for key, value in RECORDED["request"].items() if key != "stream_options"}
BODY = json.dumps(REQUEST).encode()
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
REFUSED = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def chunks(body, size):
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def post(body=BODY, path=b"/v1/chat/completions", headers=b""):
    return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n%b\r\n%b" % (path, HOST, len(body), headers, body)


class VLLM:
    """Streams the recorded reply in pieces of ``size``; refuses those who ask, if ``refuses``; may break off."""

    def __init__(self, *, size=300, refuses=False, breaks_at=None, head=STREAM, end=b"0\r\n\r\n"):
        self.bodies = []
        self._size, self._refuses, self._breaks_at, self._head, self._end = size, refuses, breaks_at, head, end

    async def __call__(self, connection):
        while True:
            try:
                self.bodies.append(await self._body(connection))
            except asyncio.IncompleteReadError:
                return
            if self._refuses and b"include_usage" in self.bodies[-1]:
                await connection.send(REFUSED)
                continue
            body = REPLY if self._breaks_at is None else REPLY[: self._breaks_at]
            await connection.send(self._head)
            data = chunks(body, self._size)
            for at in range(0, len(data), 1000):
                await connection.send(data[at : at + 1000])
            if self._breaks_at is not None:
                connection.writer.transport.abort()
                return
            await connection.send(self._end)

    async def _body(self, connection):
        before = len(connection.received)
        head = await connection.request()
        body = connection.received[before + len(head) :]
        if b"chunked" not in head.lower():
            return body
        while size := int(await connection.reader.readuntil(b"\r\n"), 16):
            body += (await connection.reader.readexactly(size + 2))[:-2]
        await connection.reader.readexactly(2)
        return body


@asynccontextmanager
async def asking(vllm, mode=AskUsage.ALWAYS, max_bytes=100_000):
    sink = Sink()
    asker = UsageAsker(mode, max_bytes=max_bytes)
    observe = observer_factory(sink, max_bytes=max_bytes, asker=asker)
    async with proxied(vllm, observe=observe) as (proxy, _):
        yield proxy, sink


@pytest.mark.parametrize("size", [1, 7, 300, 100_000])
async def test_a_stream_is_counted_and_its_client_sees_no_difference(size):
    vllm = VLLM(size=size)
    async with asking(vllm) as (proxy, sink):
        client = await proxy.client()
        for _ in range(2):
            reply = await client.ask(post())
            assert reply.body == EXPECTED
        assert [json.loads(body) for body in vllm.bodies] == [REQUEST | {"stream_options": {"include_usage": True}}] * 2
        await until(lambda: len(sink.records) == 2)
        record = sink.records[0]
        assert (record.completion_tokens, record.asked_usage) == (24, AskedUsage.REMOVED)
        assert record.outcome == Outcome.COMPLETED


async def test_a_request_in_pieces_waits_until_it_is_whole():
    vllm = VLLM()
    async with asking(vllm) as (proxy, _):
        client = await proxy.client()
        data = post()
        for at in range(0, len(data), 50):
            await client.send(data[at : at + 50])
            await asyncio.sleep(0)
        assert (await client.reply()).body == EXPECTED


async def test_a_chunked_request_is_asked_for_too():
    vllm = VLLM()
    async with asking(vllm) as (proxy, _):
        client = await proxy.client()
        head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
        assert (await client.ask(head + chunks(BODY, 20) + b"0\r\n\r\n")).body == EXPECTED
        assert b"include_usage" in vllm.bodies[0]


async def test_a_percent_encoded_path_is_recognized():
    vllm = VLLM()
    async with asking(vllm) as (proxy, sink):
        client = await proxy.client()
        assert (await client.ask(post(path=b"/v1/chat/%63ompletions?x=%2f"))).body == EXPECTED
        await until(lambda: sink.records)
        assert sink.records[0].path == "/v1/chat/completions"


@pytest.mark.parametrize("mode", [AskUsage.NEVER, AskUsage.KNOWN])
async def test_nothing_is_asked_by_default_or_of_an_unknown_version(mode):
    vllm = VLLM()
    async with asking(vllm, mode) as (proxy, _):
        assert (await (await proxy.client()).ask(post())).body == REPLY
        assert vllm.bodies == [BODY]


@pytest.mark.parametrize(
    ("request_bytes", "body"),
    [
        (post(BODY[:-1] + b',"stream_options":{"include_usage":true}}'), None),
        (post(BODY.replace(b"true", b"false")), None),
        (post(headers=b"Content-Encoding: gzip\r\n"), BODY),
        (post(path=b"/v1/embeddings"), BODY),
        (post(BODY + b" " * 2_000), None),
    ],
    ids=["asked itself", "no stream", "encoded", "another endpoint", "too large"],
)
async def test_other_requests_are_forwarded_as_they_are(request_bytes, body):
    vllm = VLLM()
    async with asking(vllm, max_bytes=1_000) as (proxy, _):
        assert (await (await proxy.client()).ask(request_bytes)).body == REPLY
        assert vllm.bodies == [body or request_bytes.partition(b"\r\n\r\n")[2]]


async def test_a_client_that_expects_100_continue_is_not_kept_waiting():
    async def script(connection):
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await connection.reader.readexactly(len(BODY)) == BODY
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with asking(script) as (proxy, _):
        client = await proxy.client()
        await client.send(post(headers=b"Expect: 100-continue\r\n")[: -len(BODY)])
        assert (await client.head()).status == 100
        assert (await client.ask(BODY)).body == b"ok"


async def test_if_vllm_refuses_the_original_is_sent_and_asking_stops():
    vllm = VLLM(refuses=True)
    async with asking(vllm) as (proxy, sink):
        client = await proxy.client()
        for _ in range(2):
            reply = await client.ask(post())
            assert (reply.status, reply.body) == (200, REPLY)
        assert [b"include_usage" in body for body in vllm.bodies] == [True, False, False]
        await until(lambda: len(sink.records) == 2)
        assert [record.asked_usage for record in sink.records] == [AskedUsage.REFUSED, None]


async def test_a_request_that_is_refused_in_either_form_does_not_stop_asking():
    bodies = []

    async def script(connection):
        while True:
            before = len(connection.received)
            try:
                head = await connection.request()
            except asyncio.IncompleteReadError:
                return
            bodies.append(connection.received[before + len(head) :])
            await connection.send(REFUSED)

    async with asking(script) as (proxy, sink):
        client = await proxy.client()
        for _ in range(2):
            assert (await client.ask(post())).status == 400
        assert [b"include_usage" in body for body in bodies] == [True, False, True, False]
        await until(lambda: len(sink.records) == 2)
        assert sink.records[0].outcome == Outcome.ERROR


@pytest.mark.parametrize("left", [USAGE, USAGE - 2, USAGE - 30, USAGE + 5, USAGE + 200, 700, 0])
async def test_a_truncated_stream_is_forwarded_in_full(left):
    async with asking(VLLM(breaks_at=left)) as (proxy, sink):
        client = await proxy.client()
        await client.send(post())
        await client.head()
        got = b""
        try:
            while data := await client.chunk():
                got += data
        except asyncio.IncompleteReadError:
            pass
        assert got == REPLY[:left]
        await until(lambda: sink.records)
        assert (sink.records[0].outcome, sink.records[0].asked_usage) == (Outcome.ABORTED, AskedUsage.MISSING)


async def test_a_client_that_breaks_off_ends_the_upstream_connection():
    async def script(connection):
        await connection.request()
        await connection.send(STREAM + chunks(REPLY[:500], 100))
        await connection.watch_close()
        closed.set()

    closed = asyncio.Event()
    async with asking(script) as (proxy, sink):
        client = await proxy.client()
        await client.send(post())
        await client.head()
        client.kill()
        async with asyncio.timeout(20):
            await closed.wait()
        await until(lambda: sink.records)
        assert sink.records[0].outcome == Outcome.ABORTED


async def test_an_http_1_0_client_gets_the_same():
    async with asking(VLLM()) as (proxy, _):
        client = await proxy.client()
        await client.send(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await client.closed()).partition(b"\r\n\r\n")[2] == EXPECTED


async def test_a_reply_that_ends_with_its_connection_gets_its_end():
    async def script(connection):
        await connection.request()
        await connection.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + REPLY[:-5]
        )
        connection.writer.close()

    async with asking(script) as (proxy, _):
        assert (await (await proxy.client()).ask(post())).body == EXPECTED[:-5]


async def test_a_reply_of_known_length_passes():
    async def script(connection):
        await connection.request()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(REPLY)
        await connection.send(head + REPLY)

    async with asking(script) as (proxy, _):
        assert (await (await proxy.client()).ask(post())).body == REPLY


@pytest.mark.parametrize(("owner", "method"), [(UsageAsker, "ask"), (AskedStream, "_complete")])
async def test_a_failure_of_ours_leaves_the_exchange_unchanged(monkeypatch, owner, method):
    """White box: the code that decides and the code that removes usage are made to fail."""

    def fail(*_args, **_options):
        raise RuntimeError("ours")

    monkeypatch.setattr(owner, method, fail)
    async with asking(VLLM()) as (proxy, _):
        assert (await (await proxy.client()).ask(post())).body == REPLY
