"""How the outputs of a real vLLM end."""

import os
import subprocess

import aiohttp
import pytest

from lab.installation import installed
from sidecar.commands.load.workload import BUILT_IN
from sidecar.commands.plugin import write_plugin
from tests.lab.conftest import ROOT, page_until, settled, sidecar
from tests.requests.test_endings import is_loop

pytestmark = pytest.mark.lab


def test_a_loop_is_what_vllm_s_own_detection_calls_one(tmp_path):
    write_plugin(tmp_path)
    command = [installed().venv / "bin/python", ROOT / "tests/lab/vllm_repetition.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


async def outputs(url, temperature):
    """The tokens of a reply of 200 tokens to each prompt."""
    body = {"model": "lab", "max_tokens": 200, "temperature": temperature, "ignore_eos": True}
    tokens = []
    async with aiohttp.ClientSession() as http:
        for prompt in BUILT_IN:
            asked = {**body, "prompt": prompt, "return_token_ids": True}
            async with http.post(f"{url}/v1/completions", json=asked) as response:
                reply = await response.json()
            tokens.append(reply["choices"][0]["token_ids"])
    return tokens


async def test_the_lab_s_loops_at_temperature_0_are_counted(observed):
    """As many as the clients see; its model loops there by itself."""
    await observed.start()
    async with sidecar(observed) as ours:
        _, before = await settled(observed, ours)
        replies = await outputs(observed.url, 0)
        await page_until(
            ours,
            lambda page: page.since(before).sum("specdec_request_endings_total") >= len(replies),
        )
        _, after = await settled(observed, ours)
        grown = after.since(before)
        loops = grown.value("specdec_request_endings_total", ending="loop", temperature="0")

        assert loops == sum(map(is_loop, replies)) > 0
        assert grown.value("specdec_group_requests_total", group="loop") == loops
