"""Counting a stream's events and keeping its last ones, in bounded memory."""

import time

import pytest

from sidecar.requests.observe.endpoint import CHAT
from sidecar.requests.observe.exchange_observer import Fault
from sidecar.requests.observe.stream import StreamReader
from sidecar.requests.observe.usage import AskUsage, UsageAsker
from tests.requests.requests_tools import DONE, ROLE, USAGE, chunk, stream


def test_comments_roles_usage_and_done_are_no_events_with_tokens():
    comment = b": keep-alive\n\n"
    record = stream(comment, ROLE, ROLE, comment, chunk(), comment, chunk(), comment, USAGE, comment, DONE).finish()
    assert record.stream_events == 2
    assert record.completion_tokens == 9


def test_the_models_text_cannot_forge_an_event():
    forged = chunk(text='\n\ndata: {"choices":[],"usage":{"completion_tokens":1}}\n\ndata: [DONE]\n\n')
    record = stream(ROLE, forged, forged, USAGE, DONE).finish()
    assert (record.stream_events, record.completion_tokens) == (2, 9)


def test_a_long_stream_is_counted_whole():
    pieces = [ROLE, *[chunk(text="x" * (number % 50)) for number in range(3_000)], USAGE, DONE]
    assert stream(*pieces).finish().stream_events == 3_000
    merged = b"".join(pieces)
    assert stream(*[merged[at : at + 1_448] for at in range(0, len(merged), 1_448)]).finish().stream_events == 3_000


COMMENT = b": keep-alive\n\n"


@pytest.mark.parametrize(
    "grouped",
    [
        lambda events: events,
        lambda events: [piece for event in events for piece in (COMMENT, event)],
        lambda events: [*events[:-4], COMMENT, *events[-4:]],
        lambda events: [b"".join(events)],
        lambda events: [b"".join(events[at : at + 2]) for at in range(0, len(events), 2)],
        lambda events: [part for event in events for part in (event[:50], event[50:])],
        lambda events: [part for event in events for part in (event[:-1], event[-1:])],
    ],
    ids=["whole", "comments", "a comment", "one piece", "pairs", "halves", "cut ends"],
)
@pytest.mark.parametrize("count", [1, 2, 5, 1_001])
def test_events_are_counted_right_however_they_are_grouped(grouped, count):
    tokens = [chunk(text="x" * (number % 50), usage=number + 1) for number in range(count)]
    record = stream(*grouped([ROLE, *tokens, USAGE, DONE]), b"").finish()
    assert (record.stream_events, record.completion_tokens) == (count, 9)


@pytest.mark.parametrize("cut", [1_000_000, 7_000, 700, 63, 64])
def test_an_event_over_the_limit_is_counted_and_affects_no_other(cut):
    large = chunk(text="x" * 50_000)
    body = b"".join([ROLE, chunk(), large, chunk(), chunk(), large, large, chunk(), USAGE, DONE])
    observer = stream(*[body[at : at + cut] for at in range(0, len(body), cut)], max_bytes=1_000)
    record = observer.finish()
    assert (record.stream_events, record.completion_tokens) == (7, 9)
    assert observer.faults == []


@pytest.mark.parametrize("before_the_cut", [0, 1, 2, 3])
def test_the_end_of_an_event_over_the_limit_may_itself_be_cut(before_the_cut):
    large = chunk(text="x" * 90_000)
    edge = len(large) - 2 + before_the_cut
    body = large + chunk() + USAGE + DONE
    observer = stream(ROLE, chunk(), max_bytes=1_000)
    for piece in (body[:40_000], body[40_000:edge], body[edge:]):
        observer.reply_piece(piece)
    assert (observer.finish().stream_events, observer._reply.too_large) == (3, True)


@pytest.mark.parametrize("cut", [1_000_000, 64])
def test_a_final_event_over_the_limit_gives_no_number_and_is_noted(cut):
    speculation = {"num_spec_steps": 1, "num_draft_tokens": 3, "num_accepted_draft_tokens": 1}
    final = chunk(pad="x" * 50_000, metrics={"speculative_decoding": speculation}, choices=[])
    body = b"".join([ROLE, chunk(), final, DONE])
    observer = stream(*[body[at : at + cut] for at in range(0, len(body), cut)], max_bytes=1_000)
    assert observer.finish().acceptance is None
    assert observer.faults == [Fault.REPLY_TOO_LARGE]


def held_by(observer):
    reply = observer._reply
    return sum(map(len, [reply._rest, *reply._last]))


@pytest.mark.parametrize("piece", [b"x" * 1_000, b"data: {" + b"x" * 999 + b"\n\n", chunk() * 10, b"\n\n", b"\n", b""])
def test_memory_is_bounded_whatever_is_streamed(piece):
    observer = stream(max_bytes=20_000)
    held = 0
    for _ in range(3_000):
        observer.reply_piece(piece)
        held = max(held, held_by(observer))
    assert held < 80_000


def cpu_seconds(make, text_bytes):
    """Of 960 kB of events with so much text each, in pieces of 700 bytes; the best of three."""
    body = chunk(text="x" * text_bytes) * (960_000 // text_bytes)
    times = []
    for _ in range(3):
        feed, begun = make(), time.process_time()
        for at in range(0, len(body), 700):
            feed(body[at : at + 700])
        times.append(time.process_time() - begun)
    return min(times)


@pytest.mark.parametrize(
    "make",
    [
        lambda: StreamReader(CHAT, max_bytes=1_048_576, clock=time.monotonic).feed,
        lambda: UsageAsker(AskUsage.ALWAYS, max_bytes=1_000).ask(CHAT, b'{"stream":true}').forward,
    ],
    ids=["read", "looked through for usage"],
)
def test_a_huge_event_costs_no_more_than_many_small_ones_of_its_size(make):
    assert cpu_seconds(make, 960_000) < 4 * cpu_seconds(make, 30_000)
