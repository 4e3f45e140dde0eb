"""Streams as vLLM sends them and packets as the middleware does, for tests of what is made of them."""

import json

import msgspec

from sidecar.requests.middleware.wire import Finished, Packet
from sidecar.requests.observe.exchange import ExchangeObserver
from sidecar.requests.observe.payload import CHAT, COMPLETIONS

SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]


class Time:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def chunk(endpoint=CHAT, *, text="word", role=None, usage=None, **fields):
    choice = {"index": 0, "text": text} if endpoint == COMPLETIONS else {"index": 0, "delta": {"content": text}}
    if role:
        choice["delta"]["role"] = role
    body = {"id": "x", "model": "lab", "choices": [choice]} | fields
    if usage is not None:
        body["usage"] = {"prompt_tokens": 3, "completion_tokens": usage}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


ROLE = chunk(text="", role="assistant")
USAGE = b'data: {"model":"lab","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"


def event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode()


def stream(*pieces, endpoint=CHAT, request=b'{"stream":true}', end=True, **options):
    observer = ExchangeObserver("r1", endpoint, **options)
    observer.request_end(request)
    observer.reply_head(200, SSE)
    for piece in pieces:
        observer.reply_piece(piece)
    if end:
        observer.reply_end()
    return observer


GOOD = {"outcome": 0, "start": 10.0, "first_token": 0.5, "end": 2.0, "model": "lab", "temperature": 0.7, "choices": 1}
GOOD |= {"stream": True, "max_tokens": None, "prompt_tokens": 3, "completion_tokens": 24, "stream_events": 12}
GOOD |= {"acceptance": (3, 9, 2, (1, 2))}


def finished(number, **changes):
    return Finished(number, 0, **(GOOD | changes))


def packet(*events, sender="a", first=0, oldest_open=0, dropped=None, version=1):
    return msgspec.msgpack.encode(Packet(version, sender, first, oldest_open, dropped or {}, list(events)))


class Nothing:
    def started(self, request): ...
    def finished(self, record): ...
    def dropped(self, reason, count): ...
