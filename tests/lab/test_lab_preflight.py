"""``preflight`` beside a real vLLM without speculation: each line follows from traffic of known make-up."""

import asyncio
import json
import signal

import aiohttp
import pytest

from tests.commands.commands_tools import sidecar_settings
from tests.commands.conftest import program  # noqa: F401 - a fixture

pytestmark = pytest.mark.lab

REQUESTS = 24
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)


async def test_each_line_is_answered_from_the_traffic(lab, program):  # noqa: F811 - the fixture
    vllm = lab("off")
    await vllm.start()
    settings = sidecar_settings(vllm.url)
    url = f"http://{settings['SPECDEC_PROXY__LISTEN']}/v1/completions"
    async with program("preflight", "--duration", "10m", "--json", **settings) as process:
        await process.stderr.readline()
        gate = asyncio.Semaphore(4)
        async with aiohttp.ClientSession() as session, asyncio.timeout(300):
            await asyncio.gather(*(_ask(session, gate, url, number) for number in range(REQUESTS)))
        process.send_signal(signal.SIGINT)
        out, _ = await process.communicate()
    vllm.kill()
    found = json.loads(out)
    lines = {line["question"]: line for line in found["lines"]}
    assert f"{REQUESTS} requests ({REQUESTS} completed)" in found["seen"][0]
    assert lines["cool sampling"]["seen"].startswith("median 0.35; up to 0.5: 50%, above 0.8: 25%")
    assert lines["long outputs"]["seen"].startswith("output P50 24 tokens, P95 24; prompt P50 ")
    assert lines["no request that speculation breaks"]["seen"].startswith(
        "min_p in 25%: rejected with 400 by vLLM 0.32"
    )
    assert lines["time goes to decoding (TPOT)"]["answer"] != "not seen"
    assert (
        lines["light load"]["answer"]
        == lines["no queue"]["answer"]
        == lines["room in the KV cache"]["answer"]
        == "use it"
    )
    assert found["conclusion"] == "leave it off as things are; not met: no request that speculation breaks"


async def _ask(session, gate, url, number):
    place = number % 4
    body = {"model": "lab", "prompt": "The quick brown fox", "max_tokens": 24, "ignore_eos": True}
    body |= {"temperature": TEMPERATURES[place], "stream": place != 1} | ({"min_p": 0.05} if place == 3 else {})
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    async with gate:
        while True:
            try:
                async with session.post(url, json=body) as response:
                    assert response.status == 200
                    await response.read()
                    return
            except aiohttp.ClientConnectorError:  # the proxy does not listen yet
                await asyncio.sleep(0.05)
