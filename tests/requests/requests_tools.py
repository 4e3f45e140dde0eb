"""Streams as vLLM sends them and packets as the middleware sends them, for tests that read them."""

import json

import msgspec

from sidecar.requests.middleware.wire import VERSION, Packet
from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS
from sidecar.requests.observe.exchange_observer import ExchangeObserver
from sidecar.requests.record import Outcome, RequestAcceptance, RequestRecord, RequestStart

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
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


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


GOOD = {"path": CHAT, "outcome": Outcome.COMPLETED, "start": 10.0, "first_token": 10.5, "end": 12.0, "model": "lab"}
GOOD |= {"temperature": 0.7, "choices": 1, "stream": True, "prompt_tokens": 3, "completion_tokens": 24}
GOOD |= {"stream_events": 12, "acceptance": RequestAcceptance(3, 9, 2, (1, 2))}


def begun(number, start=1.0):
    return RequestStart(f"{number:x}", start)


def finished(number, **changes):
    return RequestRecord(id=f"{number:x}", **(GOOD | changes))


def packet(*events, dropped=None, version=VERSION):
    started = [event for event in events if isinstance(event, RequestStart)]
    ended = [event for event in events if isinstance(event, RequestRecord)]
    return msgspec.msgpack.encode(Packet(version, dropped or {}, started, ended))


class Nothing:
    def started(self, request): ...
    def finished(self, record): ...
    def dropped(self, reason, count): ...
