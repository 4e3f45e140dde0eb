"""Streams of ``/v1/responses`` and ``/v1/messages`` on a real vLLM, which reports no acceptance for them: inferred."""

import asyncio
import json
import random
from collections import Counter

import aiohttp
import pytest

from sidecar.requests.observe.endpoint import CHAT, MESSAGES, RESPONSES
from tests.lab.test_lab_requests import WITHIN, acceptances, caught_up, sidecar

pytestmark = pytest.mark.lab

REQUESTS = 72
AT_ONCE = 8
LABELS = {0.0: "0", 0.4: "0.3-0.5", 0.9: "0.7-1"}
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog")


def request(endpoint, number):
    """The same request for every endpoint, as far as it has the fields: ``/v1/messages`` has no seed."""
    chance = random.Random(number)
    text = " ".join(chance.choices(WORDS, k=8))
    tokens = chance.randint(40, 100)
    body = {"model": "lab", "temperature": sorted(LABELS)[number % len(LABELS)], "ignore_eos": True, "seed": number}
    if endpoint == RESPONSES:
        return body | {"input": text, "max_output_tokens": tokens, "stream": True}
    messages = [{"role": "user", "content": text}]
    return body | {"messages": messages, "max_tokens": tokens, "stream": endpoint == MESSAGES}


async def send_all(url, endpoint):
    """Sends every request; gives the replies' bodies."""
    free = asyncio.Semaphore(AT_ONCE)

    async def send(session, number):
        async with free, session.post(url + endpoint, json=request(endpoint, number)) as response:
            assert response.status == 200, await response.text()
            return await response.text()

    async with aiohttp.ClientSession() as session:
        return await asyncio.gather(*(send(session, number) for number in range(REQUESTS)))


async def truth(vllm):
    """Acceptance by temperature of the same requests as chat completions, which vLLM reports."""
    await vllm.start()
    drafted, accepted = Counter(), Counter()
    for number, reply in enumerate(await send_all(vllm.url, CHAT)):
        label = LABELS[request(CHAT, number)["temperature"]]
        numbers = json.loads(reply)["metrics"]["speculative_decoding"]
        drafted[label] += numbers["num_draft_tokens"]
        accepted[label] += numbers["num_accepted_draft_tokens"]
    return {label: accepted[label] / drafted[label] for label in drafted}


async def inferred(samples, vllm, endpoint):
    """What our page says of the streams: growth since before them."""
    await vllm.start()
    async with sidecar(vllm, "middleware") as (ours, target):
        kept = await caught_up(samples, ours, target, "middleware")
        await send_all(target, endpoint)

        def settled(page):
            return page.since(kept).sum("specdec_requests_total", outcome="completed") == REQUESTS

        found = (await samples.until(ours, settled)).since(kept)
    assert found.sum("specdec_requests_total", attribution="inferred") > 0.7 * REQUESTS
    return found


async def test_streams_of_responses_are_inferred_within_the_bar(shared, samples):
    expected = await truth(shared(exact=True))
    found = await inferred(samples, shared(exact=False), RESPONSES)
    assert acceptances(found) == pytest.approx(expected, abs=WITHIN)


async def test_streams_of_messages_are_inferred_within_the_bar(shared, samples):
    """They have no seed, so the truth is the counters' growth."""
    found = await inferred(samples, shared(exact=False), MESSAGES)
    names = ("specdec_accepted_tokens_total", "specdec_draft_tokens_total")
    accepted, drafted = (found.sum(name, attribution="inferred") for name in names)
    counted = [found.sum(name.replace("specdec_", "specdec_engine_")) for name in names]
    assert accepted / drafted == pytest.approx(counted[0] / counted[1], abs=WITHIN)
