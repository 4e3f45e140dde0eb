"""A real vLLM that comes back with more draft tokens, under a sidecar that stays."""

import asyncio
import json

import aiohttp
import pytest

from tests.lab.conftest import counters, sidecar

pytestmark = pytest.mark.lab

TEMPERATURES = (0.8, 0.9, 1.0)


async def traffic(url, count=15, each=3):
    """Hot requests, four at once."""

    async def some(worker, http):
        for number in range(count):
            body = {
                "model": "lab",
                "prompt": f"draft a few tokens {worker} and verify {number} of them",
                "max_tokens": 40,
                "ignore_eos": True,
                "temperature": TEMPERATURES[number % each],
            }
            async with http.post(f"{url}/v1/completions", json=body) as response:
                assert response.status == 200
                await response.read()

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(some(worker, http) for worker in range(4)))


async def rate(url):
    """vLLM's own acceptance rate since it started."""
    _, drafted, accepted = await counters(url)
    return accepted / drafted


async def test_the_requests_of_before_a_change_are_beside_those_since(lab, folder):
    """With the rates that vLLM itself counted before and after its restart."""
    settings = {"thresholds__min_requests": "20"}
    vllm = lab("draft_model", folder=folder)
    await vllm.start()
    async with sidecar(vllm, **settings) as ours:

        async def change():
            status = json.loads((await ours.get("/api/v1/status")).body)
            (model,) = status["models"]
            return model["change"]

        async def told():
            found = await change()
            return found is not None and found["now"] is not None

        await traffic(vllm.url)
        before = await rate(vllm.url)
        assert await change() is None

        vllm.kill()
        vllm.serve("draft_model", "--tokens", "5")
        await vllm.start()
        while not await told():
            await traffic(vllm.url, count=5)
        now = await rate(vllm.url)
        seen = await change()

    sides = [seen[moment]["temperatures"]["0.7-1"] for moment in ("before", "now")]
    assert [side["acceptance"] for side in sides] == pytest.approx([before, now], abs=0.06)
    drafted = [
        seen[moment]["speculation"]["num_speculative_tokens"] for moment in ("before", "now")
    ]
    assert drafted == [3, 5]
    assert all(side["tpot"]["low"] <= side["tpot"]["seconds"] for side in sides)
