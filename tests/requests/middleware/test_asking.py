"""Requesting usage inside vLLM: what the application gets, what the client gets, and what the record contains."""

import json

import pytest

from sidecar.requests.middleware import asgi as module
from sidecar.requests.observe.usage import AskedStream, UsageAsker
from sidecar.requests.record import AskedUsage, Outcome

ASKED = "chat-stream-usage.without-metrics"  # recorded with usage asked for, and without the server's flag


def without_usage(body):
    """What the client would have got: the recorded reply without the usage event, which had the fingerprint."""
    events = body.split("\n\n")
    usage = json.loads(events[-3][6:])
    assert usage["choices"] == []
    stamp = f',"system_fingerprint":"{usage["system_fingerprint"]}"}}'
    return "\n\n".join([*events[:-4], events[-4][:-1] + stamp, *events[-2:]]).encode()


class VLLM:
    """Answers with the recorded exchange; refuses those who ask, if ``refuses``."""

    def __init__(self, replay, exchange, *, refuses=False):
        self.exchange = exchange
        self.refuses = refuses
        self.bodies, self.lengths = [], []
        self._replay = replay

    async def __call__(self, scope, receive, send):
        body = b""
        messages = []
        while True:
            messages.append(await receive())
            body += messages[-1]["body"]
            if not messages[-1].get("more_body"):
                break
        self.bodies.append(json.loads(body))
        self.lengths.append((dict(scope["headers"]).get(b"content-length"), len(body)))
        scope["path_params"] = {"changed": "as Starlette does"}
        exchange = self.exchange
        if self.refuses and "stream_options" in self.bodies[-1]:
            exchange = exchange | {"status": 400, "headers": {"content-type": "application/json"}, "body": "{}"}

        async def read():
            return messages.pop(0)

        await self._replay(exchange)(scope, read, send)


@pytest.fixture
def vllm(replay, recorded_exchange):
    def make(name=ASKED, *, keep=False, **options):
        """``keep``: the request is as it was recorded, else its client does not ask for usage."""
        exchange = recorded_exchange(name)
        request = {key: value for key, value in exchange["request"].items() if keep or key != "stream_options"}
        return VLLM(replay, exchange | {"request": request}, **options)

    return make


@pytest.fixture
def asking(monkeypatch):
    monkeypatch.setenv("SPECDEC_REQUESTS__ASK_USAGE", "true")
    monkeypatch.setattr(module.metadata, "version", lambda _name: "0.32.0")


@pytest.fixture
async def recorded(receiver, sink, eventually):
    async def wait(count=1):
        await eventually(lambda: len(sink.records) >= count)
        return sink.records[-1]

    return wait


@pytest.fixture
def serve(middleware, request_to):
    """Serves an application's exchange through the middleware; what was sent."""

    async def through(app, **options):
        return await request_to(middleware(app), app.exchange, **options)

    return through


def body_of(sent):
    return b"".join(message.get("body", b"") for message in sent)


@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_stream_is_counted_and_its_client_sees_no_difference(asking, vllm, serve, recorded, pieces):
    app = vllm()
    length = len(json.dumps(app.exchange["request"]))
    headers = [(b"content-length", b"%d" % length), (b"x", b"y")]
    sent = await serve(app, pieces=pieces, headers=headers)
    assert app.bodies == [app.exchange["request"] | {"stream_options": {"include_usage": True}}]
    announced, actual = app.lengths[0]
    assert int(announced) == actual > length
    assert body_of(sent) == without_usage(app.exchange["body"])
    assert sent[-1]["more_body"] is False
    record = await recorded()
    assert (record.completion_tokens, record.outcome) == (24, Outcome.COMPLETED)
    assert record.asked_usage == AskedUsage.REMOVED


@pytest.mark.parametrize("setting", ["", "false", "False", "no", "lots"])
async def test_nothing_is_asked_by_default(vllm, serve, recorded, monkeypatch, setting):
    monkeypatch.setattr(module.metadata, "version", lambda _name: "0.32.0")
    monkeypatch.setenv("SPECDEC_REQUESTS__ASK_USAGE", setting)
    app = vllm("chat-stream.without-metrics")
    sent = await serve(app)
    assert app.bodies == [app.exchange["request"]]
    assert body_of(sent) == app.exchange["body"].encode()
    assert (await recorded()).asked_usage is None


async def test_other_vllm_versions_are_not_asked(asking, vllm, serve, monkeypatch):
    monkeypatch.setattr(module.metadata, "version", lambda _name: "0.99.0")
    app = vllm()
    await serve(app)
    monkeypatch.setenv("SPECDEC_REQUESTS__ASK_USAGE", "any")
    await serve(app)
    assert ["stream_options" in body for body in app.bodies] == [False, True]


@pytest.mark.parametrize("name", ["chat", "responses", "messages", "bad-temperature", "chat-stream-usage"])
async def test_other_requests_are_served_as_they_are(asking, vllm, serve, request_to, name):
    app = vllm(name, keep=True)
    assert await serve(app, pieces=2) == await request_to(app, app.exchange, pieces=2)
    assert app.bodies == [app.exchange["request"]] * 2


async def test_a_body_over_the_limit_is_served_unchanged(asking, vllm, serve, monkeypatch, recorded):
    monkeypatch.setenv("SPECDEC_MIDDLEWARE__MAX_BODY_BYTES", "100")
    app = vllm("chat-stream.without-metrics")
    for pieces in (1, 2, 7):
        sent = await serve(app, pieces=pieces)
        assert body_of(sent) == app.exchange["body"].encode()
    assert app.bodies == [app.exchange["request"]] * 3


async def test_if_vllm_refuses_the_original_is_served_and_asking_stops(asking, vllm, middleware, request_to, recorded):
    app = vllm("chat-stream.without-metrics", refuses=True)
    observed = middleware(app)
    first = await request_to(observed, app.exchange, pieces=2)
    second = await request_to(observed, app.exchange, pieces=2)
    assert first == second
    assert body_of(first) == app.exchange["body"].encode()
    assert ["stream_options" in body for body in app.bodies] == [True, False, False]
    assert (await recorded(2)).asked_usage is None


async def test_a_refusal_is_counted(asking, vllm, serve, recorded):
    app = vllm("chat-stream.without-metrics", refuses=True)
    await serve(app)
    record = await recorded()
    assert (record.asked_usage, record.outcome) == (AskedUsage.REFUSED, Outcome.COMPLETED)


async def test_a_request_that_is_refused_in_either_form_does_not_stop_asking(
    asking, vllm, middleware, request_to, recorded
):
    app = vllm("bad-temperature")
    app.exchange["request"]["stream"] = True
    observed = middleware(app)
    for _ in range(2):
        sent = await request_to(observed, app.exchange)
        assert (sent[0]["status"], body_of(sent)) == (400, app.exchange["body"].encode())
    assert ["stream_options" in body for body in app.bodies] == [True, False] * 2
    assert (await recorded(2)).outcome == Outcome.ERROR


async def test_a_client_that_leaves_while_sending_reaches_the_application_as_without_us(asking, middleware):
    incoming = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    got = []

    async def app(scope, receive, send):
        got.append(await receive())
        got.append(await receive())

    messages = iter(incoming)

    async def server():
        return next(messages)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    await middleware(app)(scope, server, None)
    assert got == incoming


async def test_a_client_that_breaks_off_cancels_the_application_as_without_us(
    asking, vllm, middleware, request_to, recorded
):
    app = vllm()

    async def disconnected(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b'data: {"choices":[{}]}\n\n', "more_body": True})
        assert (await receive())["type"] == "http.disconnect"

    await request_to(middleware(disconnected), app.exchange, disconnect_after=2)
    record = await recorded()
    assert (record.outcome, record.asked_usage) == (Outcome.ABORTED, AskedUsage.MISSING)


@pytest.mark.parametrize(("owner", "method"), [(UsageAsker, "ask"), (AskedStream, "_complete")])
async def test_a_failure_of_ours_leaves_the_exchange_unchanged(asking, vllm, serve, owner, method):
    """White box: the code that decides and the code that removes usage are made to fail."""

    def fail(*_args, **_options):
        raise RuntimeError("ours")

    app = vllm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, fail)
        sent = await serve(app)
    assert body_of(sent) == app.exchange["body"].encode()


@pytest.mark.parametrize("header", [(b"content-encoding", b"gzip"), (b"content-length", b"5")])
async def test_replies_that_are_encoded_or_of_known_length_pass(asking, vllm, serve, header):
    app = vllm()
    app.exchange["headers"] |= {header[0].decode(): header[1].decode()}
    sent = await serve(app)
    assert body_of(sent) == app.exchange["body"].encode()
