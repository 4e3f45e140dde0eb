"""The ASGI class: messages pass unchanged, events report what happened, and its own faults never reach the traffic."""

import asyncio
import json
import math
import socket

import pytest

from sidecar.requests.middleware import asgi as module
from sidecar.requests.record import Outcome

PREFIX = "/v1/chat/completions"


@pytest.fixture
async def arrived(receiver, sink, eventually):
    """Waits for so many records; gives the sink."""

    async def wait(count):
        await eventually(lambda: len(sink.records) >= count)
        return sink

    return wait


async def test_recorded_exchanges_arrive_as_records(exchange, ask, observed, arrived):
    await ask(exchange)
    sink = await arrived(1)
    record, expected = sink.records[0], observed(exchange).finish()
    for name in ("path", "model", "choices", "stream", "outcome", "max_tokens", "prompt_tokens", "completion_tokens"):
        assert getattr(record, name) == getattr(expected, name)
    assert (record.acceptance, record.stream_events) == (expected.acceptance, expected.stream_events)
    assert repr(record.temperature) == repr(expected.temperature)
    assert (record.first_token is None) == (expected.first_token is None)
    assert record.start <= (record.first_token or record.start) <= record.end
    assert [(request.id, request.start) for request in sink.starts] == [(record.id, record.start)]
    assert not sink.drops


async def test_messages_pass_unchanged_and_in_order(exchange, middleware, replay, request_to):
    bare = await request_to(replay(exchange), exchange, pieces=3)
    seen = await request_to(middleware(replay(exchange)), exchange, pieces=3)
    assert seen == bare


async def test_the_application_gets_the_same_message_objects(middleware):
    incoming = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.request", "body": b"}"}]
    got = []

    async def receive():
        return incoming[len(got)]

    async def app(scope, receive, send):
        got.append(await receive())
        got.append(await receive())
        assert scope is the_scope

    the_scope = {"type": "http", "method": "POST", "path": PREFIX, "headers": []}
    await middleware(app)(the_scope, receive, None)
    assert all(one is other for one, other in zip(got, incoming, strict=True))


async def test_a_message_is_sent_before_the_application_goes_on(middleware, replay, recorded_exchange, request_to):
    """Nothing is held back: each message has reached the server when the application's ``send`` returns."""
    seen = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for number in range(5):
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
            seen.append((number, len(sent)))

    sent = []

    async def send(message):
        sent.append(message)

    await middleware(app)({"type": "http", "method": "POST", "path": PREFIX, "headers": []}, None, send)
    assert seen == [(number, number + 2) for number in range(5)]


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_other_scopes_pass_straight_through(middleware, kind):
    async def app(scope, receive, send):
        assert (scope["type"], receive, send) == (kind, "receive", "send")

    await middleware(app)({"type": kind, "path": PREFIX, "method": "POST"}, "receive", "send")


@pytest.mark.parametrize(("method", "path"), [("GET", PREFIX), ("POST", "/metrics"), ("POST", "/v1/embeddings")])
async def test_other_requests_pass_straight_through(middleware, method, path):
    async def app(scope, receive, send):
        assert (receive, send) == ("receive", "send")

    await middleware(app)({"type": "http", "path": path, "method": method, "headers": []}, "receive", "send")


async def test_a_root_path_makes_no_difference(middleware, replay, recorded_exchange, request_to, arrived):
    exchange = recorded_exchange("chat")
    await request_to(middleware(replay(exchange)), exchange, prefix="/tenant")
    assert (await arrived(1)).records[0].path == PREFIX


async def test_a_client_that_leaves_cancels_the_application_as_without_us(
    middleware, recorded_exchange, request_to, arrived
):
    """vLLM waits for ``http.disconnect`` beside its work, as Starlette's streaming response does."""

    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})

        async def stream():
            for _ in range(1_000_000):
                await send({"type": "http.response.body", "body": b'data: {"choices":[{}]}\n\n', "more_body": True})
                await asyncio.sleep(0)

        work = asyncio.create_task(stream())
        assert (await receive())["type"] == "http.disconnect"
        work.cancel()

    await request_to(middleware(app), recorded_exchange("chat-stream"), disconnect_after=5)
    assert (await arrived(1)).records[0].outcome == Outcome.ABORTED


async def test_a_reply_after_the_client_has_gone_is_an_abort(middleware, recorded_exchange, request_to, arrived):
    """vLLM cancels its handler and lets the framework answer ``null`` to nobody."""

    async def app(scope, receive, send):
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"null"})

    await request_to(middleware(app), recorded_exchange("chat"), disconnect_after=0)
    assert (await arrived(1)).records[0].outcome == Outcome.ABORTED


async def test_a_disconnect_after_the_whole_reply_is_no_abort(
    middleware, replay, recorded_exchange, request_to, arrived
):
    exchange = recorded_exchange("chat-stream")
    inner = replay(exchange)

    async def app(scope, receive, send):
        await inner(scope, receive, send)
        assert (await receive())["type"] == "http.disconnect"

    await request_to(middleware(app), exchange, disconnect_after=1)
    assert (await arrived(1)).records[0].outcome == Outcome.COMPLETED


async def test_a_cancelled_request_is_an_abort_and_stays_cancelled(middleware, recorded_exchange, request_to, arrived):
    async def app(scope, receive, send):
        await receive()
        await asyncio.Event().wait()

    task = asyncio.create_task(request_to(middleware(app), recorded_exchange("chat")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await arrived(1)).records[0].outcome == Outcome.ABORTED


async def test_an_exception_of_the_application_stays_its_own_and_is_an_error(
    middleware, recorded_exchange, request_to, arrived
):
    async def app(scope, receive, send):
        raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        await request_to(middleware(app), recorded_exchange("chat"))
    assert (await arrived(1)).records[0].outcome == Outcome.ERROR


async def test_faults_of_an_exchange_are_counted(middleware, replay, recorded_exchange, request_to, arrived):
    exchange = recorded_exchange("chat")
    await request_to(middleware(replay(exchange)), exchange, headers=[(b"content-encoding", b"gzip")])
    sink = await arrived(1)
    assert math.isnan(sink.records[0].temperature)
    assert sink.drops == {"request_encoded": 1}


async def test_the_limit_on_bodies_can_be_set(ask, recorded_exchange, arrived, monkeypatch):
    monkeypatch.setenv("SPECDEC_MIDDLEWARE__MAX_BODY_BYTES", "20")
    await ask(recorded_exchange("chat"))
    assert (await arrived(1)).drops == {"request_too_large": 1, "reply_too_large": 1}


@pytest.mark.parametrize("value", ["", "lots", "-5", "1.5", "²"])
async def test_a_wrong_limit_does_not_stop_vllm(ask, recorded_exchange, arrived, monkeypatch, value):
    """The default holds: a body over 1 MiB is not decoded, one below it is."""
    monkeypatch.setenv("SPECDEC_MIDDLEWARE__MAX_BODY_BYTES", value)
    exchange = recorded_exchange("chat")
    await ask(exchange)
    assert (await arrived(1)).records[0].temperature == exchange["request"]["temperature"]
    await ask(exchange | {"request": exchange["request"] | {"user": "x" * 1_048_576}})
    assert (await arrived(2)).drops == {"request_too_large": 1}


@pytest.mark.parametrize("method", ["__init__", "reply_head", "request_end", "finish"])
async def test_a_failure_of_ours_reaches_no_client_and_is_counted(ask, recorded_exchange, arrived, eventually, method):
    """White box: each step of an observation is made to fail in turn."""

    def fail(*_args, **_options):
        raise RuntimeError("ours")

    exchange = recorded_exchange("chat-stream")
    good = await ask(exchange)
    sink = await arrived(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.ExchangeObserver, method, fail)
        assert await ask(exchange) == good
    await eventually(lambda: sink.drops == {"internal": 1})
    await ask(exchange)
    await eventually(lambda: [record.outcome for record in sink.records].count(Outcome.COMPLETED) == 2)
    assert len(sink.records) == len(sink.starts), "a request that began must not stay open"


@pytest.mark.parametrize(
    "message",
    [{}, {"type": "http.response.start"}, {"type": "http.response.body", "body": 5}, {"type": 5, "body": None}],
)
async def test_messages_that_break_asgis_rules_pass_too(middleware, recorded_exchange, request_to, message):
    async def app(scope, receive, send):
        await send(message)
        await send({"type": "http.response.start", "status": 200, "headers": iter([])})
        await send(message)

    sent = await request_to(middleware(app), recorded_exchange("chat"))
    assert sent[0] is message
    assert sent[2] is message
    assert list(sent[1]["headers"]) == []


@pytest.mark.parametrize("scope", [{"type": "http"}, {"type": "http", "method": "POST", "path": PREFIX, "headers": 5}])
async def test_scopes_that_break_asgis_rules_pass_too(middleware, scope):
    called = []

    async def app(scope, receive, send):
        called.append(scope)

    await middleware(app)(scope, None, None)
    assert called == [scope]


async def test_nothing_of_the_text_is_in_any_packet(middleware, replay, recorded_exchange, request_to, socket_path):
    secret = "xyzzy-plugh"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(socket_path)
    listener.listen()
    listener.settimeout(20)
    observer = None
    for name in ("chat", "chat-stream", "completion-stream", "responses", "messages", "bad-temperature"):
        exchange = recorded_exchange(name)
        text = (
            json.dumps(exchange)
            .replace("the quick", secret)
            .replace('content\\\\\\":\\\\\\"', f'content\\\\\\":\\\\\\"{secret}')
        )
        exchange = json.loads(text)
        exchange["body"] = (
            exchange["body"].replace('"text":"', f'"text":"{secret}').replace('"content":"', f'"content":"{secret}')
        )
        exchange["request"]["user"] = secret
        assert secret in json.dumps(exchange["request"])
        observer = middleware(replay(exchange))
        await request_to(observer, exchange, headers=[(b"authorization", b"Bearer " + secret.encode())])
        observer._sender.close()
        connection, _ = listener.accept()
        packet = connection.recv(70_000)
        assert b"lab" in packet
        assert secret.encode() not in packet
        connection.close()
    listener.close()


async def test_each_process_has_ids_of_its_own(middleware, replay, recorded_exchange, request_to, arrived):
    exchange = recorded_exchange("chat")
    for app in (middleware(replay(exchange)), middleware(replay(exchange))):
        await request_to(app, exchange)
        await request_to(app, exchange)
    sink = await arrived(4)
    assert len({record.id for record in sink.records}) == 4
    assert {request.id for request in sink.starts} == {record.id for record in sink.records}


async def test_the_last_events_leave_when_the_server_goes_down(
    middleware, replay, recorded_exchange, request_to, arrived
):
    exchange = recorded_exchange("chat")
    inner = replay(exchange)

    async def app(scope, receive, send):
        if scope["type"] == "http":
            await inner(scope, receive, send)

    observer = middleware(app)
    await request_to(observer, exchange)
    assert len(observer._sender._queue) == 2
    await observer({"type": "lifespan"}, None, None)
    assert not observer._sender._queue
    await arrived(1)
