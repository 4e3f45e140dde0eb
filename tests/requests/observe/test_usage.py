"""Requesting usage on the client's behalf: the body changes as little as possible, the reply not at all."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from sidecar.requests.observe.usage import AskUsage, UsageAsker
from sidecar.requests.record import AskedUsage

BODY = b'{"model":"lab","stream":true}'
FINGERPRINT = b'"vllm-0.32.0-5df78fb7"'
HEAD = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795165988,"model":"lab","choices":['
CHOICE = b'{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":%s,"token_ids":null}'
USAGE = b'],"usage":{"prompt_tokens":33,"total_tokens":57,"completion_tokens":24}'
STAMP = b',"system_fingerprint":' + FINGERPRINT
ROLE = HEAD + b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
SSE = (b"Content-Type", b"text/event-stream; charset=utf-8")
ERROR = b'data: {"error":{"message":"m","type":"InternalServerError","param":null,"code":500}}\n\n'


def chunk(text=b"word", *, end=b"]}\n\n", finish=b"null"):
    return HEAD + CHOICE % (text, finish) + end


LAST = chunk(finish=b'"length"')
STAMPED = chunk(finish=b'"length"', end=b"]" + STAMP + b"}\n\n")
FINAL = HEAD + USAGE + STAMP + b"}\n\n"
FORGED = chunk(rb"}\n\ndata: {\"choices\":[],\"usage\":{}} \"finish_reason\":\"length\" }")
TEXT = [ROLE, chunk(), chunk(b"}}"), FORGED, chunk(b'\\"choices\\":[]')]


@pytest.fixture
def asker():
    return UsageAsker(AskUsage.KNOWN, max_bytes=10_000, version="0.32.0")


@pytest.fixture
def asked(asker):
    """A stream that was asked for usage."""
    return lambda body=BODY: asker.ask(CHAT, body)


def forwarded(stream, *pieces):
    return b"".join([*map(stream.forward, pieces), stream.rest()])


# -- the request


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}, {"x": [1, 2.50]}])
def test_a_stream_without_usage_is_asked_for(asker, options):
    body = {"model": "lab", "messages": [{"content": "é\n"}], "stream": True, "seed": 7, "stream_options": options}
    changed = json.loads(asker.ask(CHAT, json.dumps(body).encode()).body)
    assert changed == body | {"stream_options": (options or {}) | {"include_usage": True}}
    del body["stream_options"]
    changed = json.loads(asker.ask(COMPLETIONS, json.dumps(body | {"prompt": "x"}).encode()).body)
    assert changed == body | {"prompt": "x", "stream_options": {"include_usage": True}}


def test_every_other_value_is_sent_as_it_was_written(asker):
    values = b'{ "temperature" : 0.70e0, "prompt":"\\u00e9\\/",\n"stream":true, "n": 1.0, "x": [ 1 , 1e400 ] }'
    changed = asker.ask(COMPLETIONS, values).body
    for value in (b"0.70e0", b'"\\u00e9\\/"', b"1.0", b"[ 1 , 1e400 ]"):
        assert value in changed


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": False},
        {"stream": None},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": "true"}},
        {"stream_options": {"include_usage": 1}},
        {"stream_options": {"continuous_usage_stats": True}},
        {"stream_options": {"include_usage": False, "continuous_usage_stats": True}},
        {"stream_options": False},
        {"stream_options": []},
        {"stream_options": "x"},
        {"temperature": "hot"},  # vLLM will refuse it
        {"messages": "x" * 10_000},
        {"n": 2},
        {"use_beam_search": True},
    ],
    ids=repr,
)
def test_other_requests_are_left_alone(asked, fields):
    assert asked(json.dumps({"model": "lab", "stream": True} | fields).encode()) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"stream":true}{}', b'{"stream":true,"x":NaN}', b"\xff" * 10])
def test_bodies_that_are_not_json_are_left_alone(asked, body):
    assert asked(body) is None


@given(st.binary(max_size=100) | st.builds(lambda x: b'{"stream":true,"stream_options":' + x, st.binary(max_size=40)))
def test_no_body_raises(body):
    UsageAsker(AskUsage.ALWAYS, max_bytes=1_000).ask(CHAT, body)


@pytest.mark.parametrize(
    ("mode", "version", "enabled"),
    [
        (AskUsage.NEVER, "0.32.0", False),
        (AskUsage.KNOWN, "0.32.0", True),
        (AskUsage.KNOWN, "0.32.1rc1", True),
        (AskUsage.KNOWN, "0.29.0", True),
        (AskUsage.KNOWN, "0.33.0", True),
        (AskUsage.KNOWN, "0.28.0", False),
        (AskUsage.KNOWN, "0.34.0", False),
        (AskUsage.KNOWN, "0.3.0", False),
        (AskUsage.KNOWN, "0.99.0", False),
        (AskUsage.KNOWN, None, False),
        (AskUsage.ALWAYS, None, True),
        (AskUsage.ALWAYS, "0.99.0", True),
    ],
)
def test_only_known_versions_are_asked_unless_the_operator_says_so(mode, version, enabled):
    asker = UsageAsker(mode, max_bytes=100, version=version)
    assert asker.might_ask(CHAT, []) is asker.might_ask(COMPLETIONS, []) is enabled
    assert asker.might_ask(RESPONSES, []) is asker.might_ask(MESSAGES, []) is asker.might_ask(None, []) is False
    assert asker.might_ask(CHAT, [(b"Content-Encoding", b"gzip")]) is False


def test_a_model_that_refused_is_not_asked_again_until_vllm_restarts(asker):
    stream = asker.ask(CHAT, BODY)
    assert stream.refused(400, []) is True
    assert stream.refused(200, [SSE]) is False
    assert stream.forward(FINAL) == FINAL  # the reply to the original request
    assert stream.outcome == AskedUsage.REFUSED
    assert asker.ask(CHAT, BODY) is None
    assert asker.ask(CHAT, BODY.replace(b"lab", b"other")) is not None
    asker.forget()
    asker.version = "0.32.0"
    assert asker.ask(CHAT, BODY) is not None


def test_the_models_that_refused_are_bounded(asker):
    for number in range(100):
        asker.leave(f"m{number}")
    assert asker.ask(CHAT, BODY) is None


# -- the reply

ENDINGS = {
    "usage": ([LAST, FINAL, DONE], [STAMPED, DONE]),
    "no fingerprint": ([LAST, FINAL.replace(STAMP, b""), DONE], [LAST, DONE]),
    "null fingerprint": ([LAST, FINAL.replace(FINGERPRINT, b"null"), DONE], [LAST, DONE]),
    "a fingerprint already": ([STAMPED, FINAL, DONE], [STAMPED, DONE]),
    "spaced": ([LAST, FINAL.replace(b'"choices":[]', b'"choices": [ ]'), DONE], [STAMPED, DONE]),
    "no usage": ([LAST, DONE], [LAST, DONE]),
    "an error after the last": ([LAST, ERROR, DONE], [LAST, ERROR, DONE]),
    "an error": ([ERROR, DONE], [ERROR, DONE]),
    "a comment": ([LAST, b": ping\n\n", DONE], [LAST, b": ping\n\n", DONE]),
    "nothing more": ([LAST], [LAST]),
    "half an event": ([LAST[:-20]], [LAST[:-20]]),
    "half the usage": ([LAST, FINAL[:-20]], [LAST, FINAL[:-20]]),
    "something else": ([LAST, b"hello }\n\n}\n}"], [LAST, b"hello }\n\n}\n}"]),
    "usage alone": ([FINAL, DONE], [DONE]),
    "usage that is null": ([LAST, HEAD + b'],"usage":null}\n\n', DONE], [LAST, HEAD + b'],"usage":null}\n\n', DONE]),
}
KV = b',"kv_transfer_params":null}\n\n'  # at the end of each event with a choice, from vLLM 0.33 on
KV_LAST = LAST.replace(b"}\n\n", KV)
ENDINGS["0.33"] = ([KV_LAST, FINAL, DONE], [STAMPED.replace(b"}\n\n", KV), DONE])
ENDINGS["0.33 without usage"] = ([chunk(end=b"]" + KV), KV_LAST, DONE], [chunk(end=b"]" + KV), KV_LAST, DONE])


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_client_gets_the_same_wherever_the_stream_is_cut_in_two(asked, ending):
    came, expected = (b"".join(TEXT + events) for events in ENDINGS[ending])
    for cut in range(len(came) + 1):
        assert forwarded(asked(), came[:cut], came[cut:]) == expected


@pytest.mark.parametrize("ending", ENDINGS)
@given(data=st.data())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_client_gets_the_same_wherever_the_stream_is_cut(asked, ending, data):
    came, expected = (b"".join(TEXT + events) for events in ENDINGS[ending])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(came)), max_size=30)))
    pieces = [came[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(came)], strict=True)]
    assert forwarded(asked(), *pieces) == expected


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_client_gets_the_same_byte_by_byte(asked, ending):
    came, expected = (b"".join(TEXT + events) for events in ENDINGS[ending])
    assert forwarded(asked(), *(came[at : at + 1] for at in range(len(came)))) == expected


@pytest.mark.parametrize("name", ["chat-stream-usage.without-metrics"])
def test_a_recorded_stream_that_was_asked_for_ends_as_one_that_was_not(asked, recorded_exchange, name):
    came = recorded_exchange(name)["body"].encode()
    unasked = recorded_exchange("chat-stream.without-metrics")["body"].encode()
    events, expected = (text.split(b"\n\n") for text in (forwarded(asked(), came), unasked))
    assert b"usage" not in b"".join(events)
    keys = [json.loads(event[6:]).keys() for event in (events[-3], expected[-3])]
    assert list(keys[0]) == list(keys[1])
    assert events[-3].endswith(expected[-3][-45:])  # the place of the fingerprint
    assert events[-2:] == expected[-2:] == [b"data: [DONE]", b""]


def test_no_event_waits_but_the_last(asked):
    """An event is forwarded with its last byte, and its bytes as soon as it can't be the usage any more."""
    stream = asked()
    for event in TEXT:
        assert stream.forward(event) == event
        half = len(HEAD) + 1
        assert stream.forward(event[:half]) == event[:half]
        assert stream.forward(event[half:]) == event[half:]
    assert stream.forward(b": comment\n\n") == b": comment\n\n"
    assert stream.forward(LAST) == LAST[:-3]
    assert stream.forward(FINAL + DONE) == STAMP + b"}\n\n" + DONE
    assert stream.outcome == AskedUsage.REMOVED
    assert stream.forward(FINAL) == FINAL  # after the usage everything passes


def test_bytes_that_may_be_the_usage_wait(asked):
    stream = asked()
    for at in range(len(HEAD)):
        assert stream.forward(HEAD[at : at + 1]) == b""
    assert stream.forward(b"{") == HEAD + b"{"


def test_a_server_that_forces_usage_is_left_as_it_is_and_not_asked_again(asker):
    with_usage = [event.replace(b"]}\n\n", USAGE + b"}\n\n") for event in (*TEXT, LAST)]
    came = b"".join([*with_usage, FINAL, DONE])
    stream = asker.ask(CHAT, BODY)
    assert forwarded(stream, came) == came
    assert stream.outcome == AskedUsage.MISSING
    assert asker.ask(CHAT, BODY) is None


@pytest.mark.parametrize(
    ("status", "headers", "removes", "again"),
    [
        (200, [SSE], True, True),
        (200, [SSE, (b"content-encoding", b"identity")], True, True),
        (200, [SSE, (b"Content-Encoding", b"gzip")], False, False),
        (200, [SSE, (b"content-length", b"5")], False, False),
        (200, [(b"content-type", b"application/json"), (b"content-length", b"5")], False, True),
        (404, [(b"content-type", b"application/json"), (b"content-length", b"5")], False, True),
        (500, [SSE], False, True),
    ],
)
def test_replies_that_cannot_be_changed_stop_asking(asker, status, headers, removes, again):
    stream = asker.ask(CHAT, BODY)
    assert stream.refused(status, headers) is False
    assert stream.forward(FINAL) == (b"" if removes else FINAL)
    assert (asker.ask(CHAT, BODY) is not None) is again


@pytest.mark.parametrize(("status", "again"), [(200, False), (400, True), (503, True)])
def test_a_model_is_left_only_if_its_original_request_is_accepted(asker, status, again):
    stream = asker.ask(CHAT, BODY)
    assert [stream.refused(400, []), stream.refused(status, [SSE])] == [True, False]
    assert (asker.ask(CHAT, BODY) is not None) is again


def test_several_choices_are_asked_for_once_the_fingerprint_is_known(asker):
    body = b'{"model":"lab","stream":true,"n":2}'
    assert asker.ask(CHAT, body) is None
    forwarded(asker.ask(CHAT, BODY), LAST, FINAL, DONE)
    stream = asker.ask(CHAT, body)
    for event in (ROLE, chunk()):
        assert stream.forward(event) == event
    assert stream.forward(LAST) == STAMPED
    assert stream.forward(chunk()) == chunk()
    assert stream.forward(LAST) == STAMPED
    assert stream.forward(FINAL + DONE) == DONE
    assert stream.outcome == AskedUsage.REMOVED


def test_a_huge_event_passes(asked):
    huge = HEAD.replace(b"chatcmpl-1", b"x" * 70_000) + CHOICE % (b"y" * 2_000_000, b"null") + b"]}\n\n"
    stream = asked()
    came = [huge[at : at + 50_000] for at in range(0, len(huge), 50_000)]
    held = 0
    out = b""
    for number, piece in enumerate(came):
        out += stream.forward(piece)
        held = max(held, sum(map(len, came[: number + 1])) - len(out))
    assert out + stream.rest() == huge
    assert held < 130_000


@pytest.mark.parametrize("fails_at", [0, 1, 3, 5, 6, 7])
def test_if_it_fails_the_bytes_pass_unchanged(asked, monkeypatch, fails_at):
    """White box: looking at an event is made to fail."""
    events = [*TEXT, LAST, FINAL, DONE]
    came = b"".join(events)
    stream, calls = asked(), iter(range(100))
    complete = stream._complete

    def fail(event, sent):
        if next(calls) == fails_at:
            raise RuntimeError("ours")
        return complete(event, sent)

    monkeypatch.setattr(stream, "_complete", fail)
    out = forwarded(stream, *(came[at : at + 100] for at in range(0, len(came), 100)))
    assert out == (b"".join([*TEXT, STAMPED, DONE]) if fails_at == 7 else came)
