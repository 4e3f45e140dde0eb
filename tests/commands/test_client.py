"""The prompts that are sent, and what is read from the replies."""

import json
import time

import pytest
from aiohttp import web

from sidecar.errors import InputError
from specdec_tools.measuring import workload
from specdec_tools.measuring.client import BadReply, Client, read_reply
from specdec_tools.measuring.workload import RequestOptions

MARKER = "zebrafish"
ROLE = {
    "choices": [{"delta": {"role": "assistant", "content": ""}}],
    "usage": None,
    "metrics": None,
}
CHAT = {"choices": [{"delta": {"content": "a"}}]}
TEXT = {"choices": [{"text": "a"}]}
USAGE = {"choices": [], "usage": {"completion_tokens": 3}}
NUMBERS = {"num_spec_steps": 2, "num_draft_tokens": 6, "num_accepted_draft_tokens": 3}
ACCEPTED = {"speculative_decoding": NUMBERS | {"acceptance_histogram": [1, 0, 0, 1]}}


async def read(*events, end=b"data: [DONE]\n"):
    async def lines():
        for event in events:
            if isinstance(event, bytes):
                yield event
            else:
                yield b"data: " + json.dumps(event).encode() + b"\n"
            yield b"\n"
        yield end

    return await read_reply(lines(), 0.5, time.monotonic())


@pytest.mark.parametrize("first", [(ROLE, CHAT), (TEXT,)])
async def test_a_reply_tells_its_times_and_its_acceptance(first):
    """Of chat, whose first event has no text, and of completions."""
    before = time.monotonic()
    sample = await read(*first, {**USAGE, "metrics": ACCEPTED})
    assert (sample.temperature, sample.tokens) == (0.5, 3)
    assert (sample.drafts, sample.draft_tokens, sample.accepted_tokens, sample.positions) == (
        2,
        6,
        3,
        [1, 1, 1],
    )
    assert 0 < sample.ttft + 2 * sample.tpot <= time.monotonic() - before


async def test_what_a_reply_does_not_tell_is_unknown():
    """No time is made up from a single event."""
    sample = await read(ROLE, USAGE)
    assert (sample.ttft, sample.tpot, sample.tokens, sample.drafts) == (None, None, 3, None)
    assert (await read(TEXT)).tpot is None


@pytest.mark.parametrize(
    ("events", "end", "error", "reason"),
    [
        ((TEXT, {"error": {"message": MARKER}}), b"", BadReply, r"\Aan error in the stream\Z"),
        (
            (TEXT, {"object": "error", "message": MARKER}),
            b"",
            BadReply,
            r"\Aan error in the stream\Z",
        ),
        ((b'{"choices": []}',), b"", BadReply, "no stream"),
        ((b"data: {",), b"", ValueError, "JSON"),
    ],
)
async def test_an_error_in_the_stream_and_what_is_no_stream_are_no_reply(
    events, end, error, reason
):
    """The message of an error may quote the prompt, so it is not repeated."""
    with pytest.raises(error, match=reason):
        await read(*events, end=end)


@pytest.fixture
def prompts(tmp_path):
    """The prompts of a file with this content."""

    def read_file(content, suffix=""):
        file = tmp_path / f"prompts{suffix}"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return workload.read_prompts(file)

    return read_file


def test_prompts_come_as_lines_or_as_json(prompts):
    """By the name of the file, not by what a line looks like; at most 10,000 of them."""
    assert prompts('plain\n\n{"a": 1}\n"b" he said\n') == ("plain", '{"a": 1}', '"b" he said')
    assert prompts("".join(f"{number}\n" for number in range(10_001)))[-1] == "9999"
    assert prompts('{"prompt": "a\\nb", "x": 1}\n\n"c"\n{"text": "d"}\n', ".jsonl") == ("a\nb", "c")


def test_prompts_come_from_conversations(prompts):
    """ShareGPT's format, in which the model may have the first turn, and OpenAI's."""
    shared = [
        {
            "id": "1",
            "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "no"}],
        },
        {
            "id": "2",
            "conversations": [{"from": "gpt", "value": "no"}, {"from": "human", "value": "b"}],
        },
        {"id": "3", "conversations": []},
        {"id": "4", "conversations": [{"from": "gpt", "value": "no"}]},
        {"messages": [{"role": "system", "content": "no"}, {"role": "user", "content": "c"}]},
    ]
    assert prompts(json.dumps(shared), ".json") == ("a", "b", "c")
    assert prompts("\n".join(map(json.dumps, shared)), ".jsonl") == ("a", "b", "c")


@pytest.mark.parametrize(
    ("content", "suffix", "reason"),
    [
        (b"", "", "no prompts"),
        (b'[{"zebrafish": 1}, 5]', ".json", "no prompts"),
        (b"{zebrafish", ".jsonl", "not JSON as its name says"),
        (b"1", ".json", "not JSON as its name says"),
        (b"[" * 99, ".json", "not JSON as its name says"),
        (b"\xff", "", "not UTF-8 text"),
        (b"x" * 100, "", "larger than 0 MiB"),
    ],
)
def test_unusable_prompts_are_refused_and_not_quoted(prompts, content, suffix, reason, monkeypatch):
    monkeypatch.setattr(workload, "_MOST_BYTES", 99)
    with pytest.raises(InputError) as error:
        prompts(content, suffix)
    assert reason in str(error.value)
    assert MARKER not in str(error.value)


LONG = "a secret prompt of many words, which nobody else is to read"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"error": {"message": "This model's maximum context length is 2048 tokens. However"}},
            ": the request is longer than the model's 2048 tokens",
        ),
        (
            {
                "message": "The decoder prompt (length 3001) is longer than the maximum model"
                " length of 2048. Make sure that `max_model_len` is no smaller than it."
            },
            ": the request is longer than the model's 2048 tokens",
        ),
        ({"error": {"message": "Received key abcd-SECRET"}}, ""),
        ({"error": {"message": f"invalid: '{LONG}'"}}, ""),
        ("<html>", ""),
        (["x"] * 100_000, ""),
    ],
)
async def test_a_refusal_says_that_a_request_is_too_long_and_repeats_nothing_else(
    body, said, served
):
    async def refuse(_request):
        return web.json_response(body, status=400)

    async with (
        served(refuse) as url,
        Client(url, RequestOptions(endpoint="completions", model="m")) as client,
    ):
        assert await client.ask(LONG, 0.0) is None
        assert client.last_fault == f"status 400{said}"
