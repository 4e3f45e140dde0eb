"""HTTP requests to a vLLM on this machine.

Also what its replies say of themselves: usage and acceptance.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import aiohttp

WORDS = (
    "draft",
    "token",
    "verify",
    "accept",
    "reject",
    "sample",
    "cache",
    "block",
    "batch",
    "queue",
)


@dataclass
class Sent:
    """What was sent, and what the replies said of themselves."""

    completed: int = 0
    failed: int = 0
    completion_tokens: int = 0  # of replies with usage
    by_temperature: Counter = field(default_factory=Counter)  # completed requests; None: none named
    # by temperature, a Counter of vLLM's per-request numbers
    acceptance: dict = field(default_factory=dict)


async def each_sent(requests, send, clients, connector=None):
    """``send(http, request)`` by so many clients.

    Each takes the next of the requests until none is left.
    """
    left = iter(requests)
    untimed = aiohttp.ClientTimeout()  # a slow machine takes long
    async with (
        aiohttp.ClientSession(timeout=untimed, connector=connector) as http,
        asyncio.TaskGroup() as group,
    ):

        async def client():
            for request in left:
                await send(http, request)

        for _ in range(clients):
            group.create_task(client())


async def send(url, mix, requests, *, model="demo", concurrency=8, max_tokens=100, streamed=0.7):
    """Sends so many requests of a mix {temperature or None: weight}; half of them are chats."""
    sent, random = Sent(), Random(0)

    async def one(http, _):
        path, body = _request(mix, random, streamed)
        body |= {"model": model, "max_tokens": random.randint(16, max_tokens), "ignore_eos": True}
        try:
            _count(sent, body.get("temperature"), await exchange(http, url + path, body))
        except (aiohttp.ClientError, OSError):
            sent.failed += 1

    await each_sent(range(requests), one, concurrency)
    return sent


async def exchange(http, url, body):
    """The body of a reply, or the last event of a stream.

    Raises:
        aiohttp.ClientError: the request was refused or the reply broke off.
    """
    async with http.post(url, json=body) as response:
        response.raise_for_status()
        reply = await response.read()
    if not body.get("stream"):
        return json.loads(reply)
    *_, last, mark, _ = [b"", b"", *reply.split(b"\n\n")]
    if mark != b"data: [DONE]":
        raise aiohttp.ClientPayloadError
    return json.loads(last.removeprefix(b"data: "))


def _request(mix, random, streamed):
    temperature = random.choices(list(mix), weights=list(mix.values()))[0]
    text = " ".join(random.choices(WORDS, k=random.randrange(20, 60)))
    body = {} if temperature is None else {"temperature": temperature}
    if random.random() < streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if random.random() < 0.5:
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}
    return "/v1/completions", body | {"prompt": text}


def _count(sent, temperature, reply):
    sent.completed += 1
    sent.by_temperature[temperature] += 1
    sent.completion_tokens += (reply.get("usage") or {}).get("completion_tokens", 0)
    numbers = (reply.get("metrics") or {}).get("speculative_decoding")
    if numbers is not None:
        names = {
            "drafts": "spec_steps",
            "draft_tokens": "draft_tokens",
            "accepted_tokens": "accepted_draft_tokens",
        }
        sums = sent.acceptance.setdefault(temperature, Counter())
        sums.update({name: numbers[f"num_{vllms}"] for name, vllms in names.items()})
