import json
import time

import pytest

from sidecar.commands.sweep.client import BadReply, read_reply

ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None, "metrics": None}
CHAT = {"choices": [{"delta": {"content": "a"}}]}
TEXT = {"choices": [{"text": "a"}]}
USAGE = {"choices": [], "usage": {"completion_tokens": 3}}
ACCEPTED = {
    "num_spec_steps": 2,
    "num_draft_tokens": 6,
    "num_accepted_draft_tokens": 3,
    "acceptance_histogram": [1, 0, 0, 1],
}


async def reply(*events):
    for event in events:
        yield event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n"
        yield b"\n"


async def read(*events):
    return await read_reply(reply(*events, b"data: [DONE]\n"), 0.5, time.monotonic())


@pytest.mark.parametrize("first", [(ROLE, CHAT), (TEXT,)])
async def test_a_reply_tells_its_times_and_its_acceptance(first):
    found = await read(*first, {**USAGE, "metrics": {"speculative_decoding": ACCEPTED}})
    assert (found.temperature, found.tokens, found.drafts, found.draft_tokens, found.accepted_tokens) == (
        0.5,
        3,
        2,
        6,
        3,
    )
    assert found.positions == [1, 1, 1]
    assert found.duration == pytest.approx(found.ttft + 2 * found.tpot)


async def test_what_a_reply_does_not_tell_is_unknown():
    found = await read(ROLE, USAGE)
    assert (found.ttft, found.tpot, found.tokens, found.drafts) == (None, None, 3, None)
    assert (await read(TEXT)).tpot is None


@pytest.mark.parametrize("event", [{"error": {"message": "zebrafish"}}, {"object": "error", "message": "zebrafish"}])
async def test_an_error_in_the_stream_is_no_reply(event):
    with pytest.raises(BadReply, match=r"\Aan error in the stream\Z"):
        await read(TEXT, event)


async def test_what_is_no_stream_is_no_reply():
    with pytest.raises(BadReply, match="no stream"):
        await read_reply(reply(b'{"choices": []}'), 0.5, time.monotonic())
    with pytest.raises(ValueError, match="JSON"):
        await read(b"data: {")
