"""Usage asked for on the client's behalf, on a real vLLM: every stream counts and no client sees a difference."""

import asyncio
import json
import random
import re
from contextlib import asynccontextmanager

import pytest

from sidecar.app import running
from sidecar.requests.middleware.bundle import standalone_source
from sidecar.settings import load_settings
from tests.debian_servers import free_port
from tests.lab.conftest import MODULE
from tests.lab.test_lab_requests import run

pytestmark = pytest.mark.lab

STREAMS = 60
SEVERAL = 8  # of them, the last ones, with two choices: vLLM reports nothing per request for these
FLAGS = ("--per-request-spec-decode-metrics", "summary")
VARIES = re.compile(rb'"id":"(chatcmpl|cmpl)-[^"]+"|"created":\d+')
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/chat/%63ompletions")


def request(number):
    """A seeded stream whose client does not ask for usage; some have more choices, options, or another end."""
    chance = random.Random(number)
    body = {
        "model": "lab",
        "stream": True,
        "seed": number,
        "temperature": chance.choice([0.0, 0.4, 0.8, 1.2]),
        "max_tokens": chance.randint(4, 24),  # so that each one drafts
        "ignore_eos": True,
    }
    if number >= STREAMS - SEVERAL:
        body |= {"n": 2, "temperature": 0.8}
    if number % 7 == 3:
        body["stream_options"] = {"include_usage": False}
    path = PATHS[number % len(PATHS)]
    prompt = " ".join(chance.choices(["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"], k=8))
    if path == "/v1/completions":
        return path, body | {"prompt": prompt, "logprobs": 2 if number % 4 == 1 else None}
    return path, body | {"messages": [{"role": "user", "content": prompt}]}


async def stream(url, number):
    """What a client gets: headers, and the body as ``without_merging`` has it."""
    path, body = request(number)
    data = json.dumps(body).encode()
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nHost: lab\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + data)
    async with asyncio.timeout(300):
        reply = await reader.read()
    writer.close()
    lines, _, chunks = reply.partition(b"\r\n\r\n")
    headers = sorted(line.lower() for line in lines.split(b"\r\n") if not line.lower().startswith(b"date:"))
    text = b""
    while not text.endswith(b"data: [DONE]\n\n"):
        size, _, chunks = chunks.partition(b"\r\n")
        text, chunks = text + chunks[: int(size, 16)], chunks[int(size, 16) + 2 :]
    return headers, without_merging(VARIES.sub(b"", text).replace(b"{,", b"{").replace(b",,", b","))


def without_merging(body):
    """A stream less what differs from run to run: vLLM merges events as its load has it.

    Each choice's text is joined. What stays is the last event of each choice with its keys in their order, which of the
    keys that asking may bring are in the events before it, and the end.
    """
    *events, done, rest = body.split(b"\n\n")
    texts, last, keys = {}, {}, set()
    for event in (json.loads(event.removeprefix(b"data: ")) for event in events):
        assert len(event["choices"]) == 1, "a usage event"
        choice = event["choices"][0]
        delta = choice.pop("delta", None) or {"content": choice.pop("text", "")}
        texts[choice["index"]] = texts.get(choice["index"], "") + (delta.get("content") or "")
        choice.pop("logprobs", None)
        if choice["finish_reason"] is not None:
            last[choice["index"]] = json.dumps(event)
        else:
            keys |= set(event)
    return texts, last, keys & {"usage", "system_fingerprint", "metrics"}, done, rest


@asynccontextmanager
async def asking(vllm, source, socket):
    """A sidecar that asks for usage; gives its page's address and where requests go."""
    port = free_port()
    environment = {
        "SPECDEC_VLLM_URL": vllm.url,
        "SPECDEC_LISTEN": "127.0.0.1:0",
        "SPECDEC_REQUESTS__SOURCE": source,
        "SPECDEC_REQUESTS__ASK_USAGE": "true",
        "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{port}",
        "SPECDEC_MIDDLEWARE__SOCKET": str(socket),
    }
    async with running(load_settings(None, environment)) as address:
        yield f"http://{address}", f"http://127.0.0.1:{port}" if source == "proxy" else vllm.url


async def counters(samples, url):
    page = await samples(url)
    return [page.value(f"vllm:spec_decode_num_{name}_tokens_total") for name in ("draft", "accepted")]


async def check(samples, vllm, source, socket, expected):
    """The same streams, asked for usage: the same bytes and objects, and all of them counted, to the token."""
    replies, objects = expected
    async with asking(vllm, source, socket) as (ours, target):
        await samples.until(ours, lambda found: found.value("specdec_up") == 1)
        if source == "proxy":  # it asks once it knows vLLM's version
            await asyncio.wait_for(first_asked(samples, ours, target), 120)
        kept = await samples.until(ours, settled)
        before = await counters(samples, vllm.url)
        for number, reply in enumerate(replies):
            if number == STREAMS - SEVERAL:
                after = await counters(samples, vllm.url)
            assert await stream(target, number) == reply, request(number)
        found = await samples.until(
            ours, lambda found: found.since(kept).sum("specdec_requests_total", outcome="completed") == STREAMS
        )
        assert await openai_client(vllm, target) == objects
    grown = found.since(kept)
    assert grown.sum("specdec_asked_usage_total", outcome="removed") == STREAMS
    assert grown.sum("specdec_asked_usage_total") == STREAMS
    assert grown.sum("specdec_requests_total", attribution="exact") == STREAMS - SEVERAL
    sums = [grown.sum(f"specdec_{name}_tokens_total", attribution="exact") for name in ("draft", "accepted")]
    assert sums == [after[0] - before[0], after[1] - before[1]]
    assert found.value("specdec_attribution_coverage_ratio") == pytest.approx(1, abs=0.02)


def settled(found):
    return found.sum("specdec_requests_total") == found.sum("specdec_request_events_total")


async def first_asked(samples, ours, target):
    while not (await samples(ours)).sum("specdec_asked_usage_total", outcome="removed"):
        await stream(target, 0)


OPENAI_CLIENT = """
import json, sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key="none")
extra = {"ignore_eos": True}
messages = [{"role": "user", "content": "the quick brown fox"}]
seen = []
for number in range(12):
    options = {"model": "lab", "max_tokens": 20, "seed": number, "stream": True, "extra_body": extra}
    if number % 3 == 2:
        chunks = list(client.completions.create(prompt="the quick brown fox", **options))
        text = "".join(chunk.choices[0].text for chunk in chunks)
    else:
        chunks = list(client.chat.completions.create(messages=messages, **options))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    last = chunks[-1].model_dump(exclude_unset=True)
    del last["id"], last["created"], last["choices"][0]["text" if number % 3 == 2 else "delta"]
    last["system_fingerprint"] = "system_fingerprint" in last  # the servers have different flags
    seen.append([text, last, sorted({key for chunk in chunks for key in chunk.model_dump(exclude_unset=True)})])
print(json.dumps(seen))
"""


async def openai_client(vllm, url):
    """What the ``openai`` package gives of some streams without usage: text, the last object, and the fields of all."""
    return json.loads(await run(str(vllm.executable().with_name("python")), "-c", OPENAI_CLIENT, f"{url}/v1"))


async def test_streams_count_and_their_clients_see_no_difference(lab, shared, samples, tmp_path):
    socket = tmp_path / "events.sock"
    plain = lab("draft_model", *FLAGS, EXACT="0")
    await plain.start()
    expected = [await stream(plain.url, number) for number in range(STREAMS)]
    assert all("system_fingerprint" in end for _, (_, last, *_) in expected for end in last.values())
    objects = await openai_client(plain, plain.url)
    assert all(last["choices"][0]["finish_reason"] == "length" and "usage" not in keys for _, last, keys in objects)
    await check(samples, plain, "proxy", socket, (expected, objects))
    plain.kill()
    silent = shared(exact=False)  # with the middleware, which does not ask
    await silent.start()
    assert await openai_client(silent, silent.url) == objects

    (tmp_path / f"{MODULE}.py").write_text(standalone_source())
    observed = lab(
        "draft_model", *FLAGS, "--middleware", f"{MODULE}.ObserveRequests",
        EXACT="0", PYTHONPATH=str(tmp_path), SPECDEC_MIDDLEWARE__SOCKET=str(socket), SPECDEC_REQUESTS__ASK_USAGE="true",
    )  # fmt: skip
    await observed.start()
    await check(samples, observed, "middleware", socket, (expected, objects))
