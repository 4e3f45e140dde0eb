"""Two real servers whose plug-ins share one socket, and a sidecar that restarts under load."""

import asyncio

import aiohttp
import pytest

from tests.lab.conftest import page_until, settled, sidecar
from tests.requests.plain_receiver import COUNTS

pytestmark = pytest.mark.lab

OWN = "0"  # the label of the requests to the server that the sidecar watches


async def send(vllm, temperature, count=4, tokens=30):
    """Requests of one temperature, two at once."""

    async def some(http):
        for _ in range(count // 2):
            body = {
                "model": "lab",
                "prompt": "draft a few tokens and verify them",
                "max_tokens": tokens,
                "ignore_eos": True,
                "temperature": temperature,
            }
            async with http.post(f"{vllm.url}/v1/completions", json=body) as response:
                assert response.status == 200
                await response.read()

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(some(http), some(http))


def equal(theirs, page):
    """Whether our sums are vLLM's counters, to the token."""
    return [page.sum(f"specdec_{name}_total") for name in COUNTS] == [
        theirs.value(f"vllm:spec_decode_num_{name}_total") for name in COUNTS
    ]


def temperatures(page):
    """The temperatures that have drafts."""
    return {
        dict(labels)["temperature"]
        for (name, labels), value in page.items()
        if name == "specdec_draft_tokens_total" and value
    }


async def test_a_neighbour_on_the_same_socket_is_left_out_and_a_restart_under_load_loses_nothing(
    lab, folder
):
    own = lab("draft_model", folder=folder)
    neighbour = lab("draft_model", folder=folder)
    for vllm in (own, neighbour):
        await vllm.start()

    async with sidecar(own) as ours:
        await asyncio.gather(send(own, 0), send(neighbour, 1))
        theirs, page = await settled(own, ours)
        assert equal(theirs, page)
        assert temperatures(page) == {OWN}

    loads = [
        asyncio.create_task(send(vllm, temperature, count=40))
        for vllm, temperature in ((own, 0), (neighbour, 1))
    ]
    for _ in range(2):
        async with sidecar(own) as ours:
            page = await page_until(ours, lambda page: page.sum("specdec_draft_tokens_total") > 0)
            assert temperatures(page) == {OWN}
            assert not loads[0].done(), "it was there under load"
    async with sidecar(own) as ours:
        await asyncio.gather(*loads)
        theirs, page = await settled(own, ours)
    assert equal(theirs, page)
    assert temperatures(page) == {OWN}
