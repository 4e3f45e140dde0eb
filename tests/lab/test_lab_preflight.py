"""``preflight`` beside a real vLLM without speculation: each line follows from traffic of known make-up."""

import asyncio
import json
import signal

import aiohttp
import pytest

from tests.lab.conftest import idle
from tests.waiting import until

pytestmark = pytest.mark.lab

REQUESTS = 24
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)


async def test_each_line_is_answered_from_the_traffic(lab, folder, program):
    vllm = lab("off", folder=folder)
    await vllm.start()
    settings = {"SPECDEC_VLLM_URL": vllm.url, "SPECDEC_PLUGIN__SOCKET": str(vllm.socket)}
    async with program("preflight", "--duration", "10m", "--json", **settings) as process:
        await until(vllm.socket.exists, seconds=30)  # a quick machine's engine would be idle before anybody listens
        async with aiohttp.ClientSession() as session, asyncio.timeout(300):
            for number in range(0, REQUESTS, 4):
                await asyncio.gather(*(_ask(session, vllm.url, number + place) for place in range(4)))
        await idle(vllm.url)
        process.send_signal(signal.SIGINT)
        out, _ = await process.communicate()
    report = json.loads(out)
    lines = {line["condition"]: line for line in report["lines"]}
    assert lines["low temperatures"]["seen"] == "median 0.35; 50% up to 0.5, 25% above 0.8"
    assert "P50 24" in lines["long outputs"]["seen"]
    assert "min_p in 25%" in lines["supported parameters"]["seen"]
    assert lines["time spent decoding"]["answer"] != "not seen"
    for condition in ("light load", "no queue", "free KV cache"):
        assert lines[condition]["answer"] == "use it"
    assert report["conclusion"].startswith("Leave it off for now: 25% of requests use")


async def _ask(session, url, number):
    place = number % 4
    body = {"model": "lab", "prompt": "The quick brown fox", "max_tokens": 24, "ignore_eos": True}
    body |= {"temperature": TEMPERATURES[place], "stream": place != 1} | ({"min_p": 0.05} if place == 3 else {})
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200
        await response.read()
