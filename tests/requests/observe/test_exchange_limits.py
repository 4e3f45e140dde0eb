"""Bodies that are not decoded: too large, encoded or malformed. They give no number and are noted."""

import json
import math

import pytest

from sidecar.requests.observe.endpoint import CHAT
from sidecar.requests.observe.exchange_observer import ExchangeObserver, Fault
from tests.requests.requests_tools import JSON, ROLE, SSE, USAGE, chunk


def test_a_large_request_is_not_decoded_and_its_temperature_unknown():
    body = json.dumps({"model": "m", "temperature": 0.5, "x": "y" * 2_000}).encode()
    for pieces in ([body], [body[:1_000], body[1_000:]]):
        observer = ExchangeObserver("r1", CHAT, max_bytes=1_500)
        for piece in pieces[:-1]:
            observer.request_piece(piece)
        observer.request_end(pieces[-1])
        record = observer.finish()
        assert math.isnan(record.temperature)
        assert record.model is None
        assert observer.faults == [Fault.REQUEST_TOO_LARGE]


def test_a_body_at_the_limit_is_decoded():
    body = json.dumps({"temperature": 0.5}).encode()
    observer = ExchangeObserver("r1", CHAT, max_bytes=len(body))
    observer.request_end(body)
    reply = b'{"usage":{"completion_tokens":5}}'
    observer = ExchangeObserver("r1", CHAT, max_bytes=len(reply))
    observer.request_end(body)
    observer.reply_head(200, JSON)
    observer.reply_piece(reply)
    observer.reply_end()
    record = observer.finish()
    assert (record.temperature, record.completion_tokens, observer.faults) == (0.5, 5, [])


def test_a_malformed_request_is_unknown_and_noted():
    observer = ExchangeObserver("r1", CHAT)
    observer.request_end(b'{"temperature":')
    assert math.isnan(observer.finish().temperature)
    assert observer.faults == [Fault.REQUEST_MALFORMED]


@pytest.mark.parametrize("name", [b"content-encoding", b"Content-Encoding"])
def test_encoded_bodies_are_not_decoded_and_noted(name):
    observer = ExchangeObserver("r1", CHAT, [(name, b"gzip")])
    observer.request_end(b'{"temperature":0.5}')
    observer.reply_head(200, [*SSE, (name, b"GZIP")])
    for piece in (ROLE, chunk(), USAGE):
        observer.reply_piece(piece)
    observer.reply_end()
    record = observer.finish()
    assert math.isnan(record.temperature)
    assert (record.completion_tokens, record.stream_events) == (None, 0)
    assert observer.faults == [Fault.REQUEST_ENCODED, Fault.REPLY_ENCODED]


def test_identity_is_no_encoding():
    observer = ExchangeObserver("r1", CHAT, [(b"content-encoding", b"identity")])
    observer.request_end(b'{"temperature":0.5}')
    assert observer.finish().temperature == 0.5


def test_a_large_reply_is_not_decoded_and_noted():
    observer = ExchangeObserver("r1", CHAT, max_bytes=500)
    observer.reply_head(200, JSON)
    for _ in range(100):
        observer.reply_piece(b" " * 100)
    observer.reply_piece(b'{"usage":{"completion_tokens":5}}')
    observer.reply_end()
    assert observer.finish().completion_tokens is None
    assert observer.faults == [Fault.REPLY_TOO_LARGE]
