"""One record from the bytes of one exchange, however they are cut and whatever happens."""

import json
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from sidecar.requests.observe.exchange_observer import ExchangeObserver
from sidecar.requests.record import Outcome, RequestAcceptance
from tests.requests.requests_tools import DONE, ROLE, SSE, Time, chunk, event, stream

UNHURRIED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def has_tokens(event):
    return "choices" in event and event["choices"] != [] and "role" not in event["choices"][0].get("delta", {})


def truth_of(exchange):
    """What an exchange says, read with the standard library alone."""
    events, final = [], None
    if exchange["headers"]["content-type"].startswith("text/event-stream"):
        lines = [line for line in exchange["body"].splitlines() if line.startswith("data: {")]
        events = [json.loads(line[6:]) for line in lines]
        final = next(event for event in reversed(events) if "response" in event or event.get("type") != "message_stop")
        final = final.get("response", final)
    else:
        final = json.loads(exchange["body"])
    usage = final.get("usage") or {}
    speculation = (final.get("metrics") or {}).get("speculative_decoding")
    return {
        "completion_tokens": usage.get("completion_tokens", usage.get("output_tokens")),
        "prompt_tokens": usage.get("prompt_tokens", usage.get("input_tokens")),
        "stream_events": sum(map(has_tokens, events)),
        "acceptance": speculation
        and RequestAcceptance(
            speculation["num_spec_steps"],
            speculation["num_draft_tokens"],
            speculation["num_accepted_draft_tokens"],
            tuple(speculation["acceptance_histogram"]),
        ),
    }


def test_recorded_exchanges_decode_to_the_truth_in_them(exchange, observed):
    observer = observed(exchange)
    record = observer.finish()
    asked = exchange["request"]
    truth = truth_of(exchange)
    assert {name: getattr(record, name) for name in truth} == truth
    assert record.path == exchange["path"]
    assert record.model == asked["model"]
    assert record.stream == asked.get("stream", False)
    assert record.max_tokens == 24
    assert record.choices == asked.get("n", 1) * (2 if isinstance(asked.get("prompt"), list) else 1)
    assert record.outcome == (Outcome.COMPLETED if exchange["status"] == 200 else Outcome.ERROR)
    assert (record.first_token is not None) == record.stream
    if asked.get("temperature") == -1:
        assert math.isnan(record.temperature)
    else:
        echoed = 1.0 if "input" in asked else None  # `/v1/responses` says which one it took
        assert record.temperature == asked.get("temperature", echoed)
    assert observer.faults == []


@given(data=st.data())
@settings(deadline=None, max_examples=30, suppress_health_check=UNHURRIED)
def test_the_record_does_not_depend_on_where_the_bytes_are_cut(exchange, observed, data):
    def clock():
        return 5.0

    length = len(exchange["body"].encode())
    cuts = data.draw(st.lists(st.integers(0, length), max_size=40))
    whole = observed(exchange, wall=clock, clock=clock)
    cut = observed(exchange, cuts, wall=clock, clock=clock)
    first, second = whole.finish(), cut.finish()
    assert repr(first) == repr(second)  # by text, since an unknown temperature is unequal to itself
    assert whole.faults == cut.faults


def test_a_stream_cut_into_single_bytes_gives_the_same_record(recorded_exchange, observed):
    exchange = recorded_exchange("chat-stream")
    cut = observed(exchange, range(len(exchange["body"].encode()))).finish()
    assert {name: getattr(cut, name) for name in truth_of(exchange)} == truth_of(exchange)


def test_truncated_replies_never_raise_and_never_give_a_wrong_number(exchange, headers_of):
    body = exchange["body"].encode()
    truth = truth_of(exchange)
    for length in range(0, len(body), 7):
        observer = ExchangeObserver("r1", exchange["path"])
        observer.request_end(json.dumps(exchange["request"]).encode())
        observer.reply_head(exchange["status"], headers_of(exchange))
        observer.reply_piece(body[:length])
        record = observer.finish()
        assert record.outcome == (Outcome.ABORTED if exchange["status"] == 200 else Outcome.ERROR)
        assert record.acceptance in (None, truth["acceptance"])
        assert record.completion_tokens is None or record.completion_tokens <= truth["completion_tokens"]
        assert record.stream_events <= truth["stream_events"]


@given(data=st.data())
@settings(deadline=None, max_examples=30, suppress_health_check=UNHURRIED)
def test_garbled_replies_never_raise(exchange, headers_of, data):
    body = bytearray(exchange["body"].encode())
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=20)):
        body[place] = data.draw(st.integers(0, 255))
    observer = ExchangeObserver("r1", exchange["path"])
    observer.request_end(b"{}")
    observer.reply_head(exchange["status"], headers_of(exchange))
    observer.reply_piece(bytes(body))
    observer.reply_end()
    acceptance = observer.finish().acceptance
    assert acceptance is None or acceptance.accepted_tokens <= acceptance.draft_tokens


def test_times_are_of_the_first_event_with_tokens_and_of_the_end():
    clock = Time()
    observer = ExchangeObserver("r1", CHAT, wall=lambda: 1_000.0, clock=clock)
    assert observer.start.id == "r1"
    assert observer.start.start == 1_000.0
    observer.request_end(b"{}")
    observer.reply_head(200, SSE)
    for piece, after in (
        (ROLE, 1),
        (b": keep-alive\n\n", 1),
        (chunk()[:20], 1),
        (chunk()[20:], 2),
        (chunk(), 1),
        (DONE, 1),
    ):
        clock.now += after
        observer.reply_piece(piece)
    observer.reply_end()
    record = observer.finish()
    assert (record.start, record.first_token, record.end) == (1_000.0, 1_005.0, 1_007.0)


def test_the_chunks_own_usage_counts_for_one_choice_that_broke_off():
    observer = stream(ROLE, chunk(usage=1), chunk(usage=4), end=False)
    record = observer.finish()
    assert (record.outcome, record.completion_tokens, record.prompt_tokens) == (Outcome.ABORTED, 4, 3)


def test_the_chunks_own_usage_says_nothing_for_several_choices():
    record = stream(ROLE, ROLE, chunk(usage=1), chunk(usage=4), end=False, request=b'{"n":2}').finish()
    assert record.completion_tokens is None
    assert record.choices == 2


def test_an_error_in_a_stream_is_an_error():
    error = b'data: {"error":{"message":"m","type":"InternalServerError","code":500}}\n\n'
    record = stream(ROLE, chunk(), error, DONE).finish()
    assert (record.outcome, record.stream_events) == (Outcome.ERROR, 1)
    assert stream(error, DONE).finish().outcome == Outcome.ERROR
    assert stream(chunk(COMPLETIONS), error, DONE, endpoint=COMPLETIONS).finish().outcome == Outcome.ERROR


def responses(status="completed", kind="response.completed"):
    opening = {"model": "lab", "temperature": 0.6, "status": "in_progress", "usage": None, "error": None}
    closing = opening | {"status": status, "usage": {"input_tokens": 5, "output_tokens": 7}}
    return [
        event("response.created", response=opening),
        event("response.in_progress", response=opening),
        event("response.output_item.added", item={}),
        event("response.output_text.delta", delta="event: response.output_text.delta\ndata: {"),
        event("response.output_text.delta", delta="b"),
        event("response.output_text.done", text="ab"),
        event(kind, response=closing),
    ]


def test_a_stream_of_responses():
    """Its events are not counted: a step without text has none."""
    record = stream(*responses(), endpoint=RESPONSES, request=b'{"model":"lab"}').finish()
    assert (record.stream_events, record.prompt_tokens, record.completion_tokens) == (0, 5, 7)
    assert (record.temperature, record.model, record.outcome) == (0.6, "lab", Outcome.COMPLETED)


def test_a_stream_of_responses_that_broke_off_has_no_token_count():
    record = stream(*responses()[:5], endpoint=RESPONSES, end=False).finish()
    assert (record.first_token is None, record.completion_tokens, record.outcome) == (False, None, Outcome.ABORTED)


def test_a_stream_of_responses_that_failed_is_an_error():
    record = stream(*responses("failed", "response.failed"), endpoint=RESPONSES).finish()
    assert record.outcome == Outcome.ERROR


def test_the_requests_own_temperature_goes_before_the_echoed_one():
    assert stream(*responses(), endpoint=RESPONSES, request=b'{"temperature":0.2}').finish().temperature == 0.2
    assert stream(*responses(), endpoint=RESPONSES, request=b'{"temperature":-1}').finish().temperature == 0.6


def test_a_stream_of_messages():
    """Its first token comes with ``message_start``; its events are not counted: a step without text has none."""
    start = {"model": "lab", "usage": {"input_tokens": 5, "output_tokens": 0}}
    pieces = [
        event("message_start", message=start),
        event("content_block_start", content_block={"type": "text"}),
        event("content_block_delta", delta={"type": "text_delta", "text": "a"}),
        event("content_block_stop"),
        event("message_delta", delta={}, usage={"input_tokens": 5, "output_tokens": 2}),
        event("message_stop"),
    ]
    clock = Time()
    observer = stream(endpoint=MESSAGES, clock=clock)
    for piece in pieces:
        clock.now += 1
        observer.reply_piece(piece)
    record = observer.finish()
    assert (record.stream_events, record.prompt_tokens, record.completion_tokens) == (0, 5, 2)
    assert (record.first_token, record.end) == (record.start + 1, record.start + 6)
    assert stream(*pieces[:3], endpoint=MESSAGES, end=False).finish().completion_tokens is None
    error = event("error", error={"type": "internal_error"})
    assert stream(*pieces[:3], error, endpoint=MESSAGES).finish().outcome == Outcome.ERROR


def test_a_failure_seen_by_other_means_is_an_error_and_a_missing_end_an_abort():
    assert ExchangeObserver("r1", CHAT).finish(failed=True).outcome == Outcome.ERROR
    assert ExchangeObserver("r1", CHAT).finish().outcome == Outcome.ABORTED


def test_a_client_that_goes_before_the_end_aborts_and_after_it_does_not():
    observer = stream(ROLE, chunk(), end=False)
    observer.client_gone()
    observer.reply_end()
    assert observer.finish().outcome == Outcome.ABORTED
    observer = stream(ROLE, chunk(), DONE)
    observer.client_gone()
    assert observer.finish().outcome == Outcome.COMPLETED


def test_offsets_are_kept_only_while_recording():
    clock = Time()
    observer = stream(ROLE, offsets=True, clock=clock)
    for _ in range(3):
        clock.now += 1
        observer.reply_piece(chunk())
    clock.now += 1
    observer.reply_piece(chunk() + chunk())
    observer.reply_piece(DONE)
    assert observer.finish().event_offsets == (1.0, 2.0, 3.0, 4.0, 4.0)
    assert stream(ROLE, chunk(), DONE).finish().event_offsets == ()


def test_nothing_of_the_text_is_in_a_record():
    secret = "xyzzy-plugh"
    observer = ExchangeObserver("r1", CHAT, offsets=True)
    observer.request_end(json.dumps({"model": "m", "messages": [{"content": secret}], "user": secret}).encode())
    observer.reply_head(200, SSE)
    for piece in (ROLE, chunk(text=secret), chunk(text=secret, usage=2), DONE):
        observer.reply_piece(piece)
    assert secret not in repr(observer.finish()) + repr(observer.start) + repr(observer.faults)
