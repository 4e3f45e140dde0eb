"""``preflight`` and ``sweep`` on a real vLLM, and the page that lab/pages.py writes of it."""

import json
import os
import signal
import subprocess
from functools import partial

import pytest

from lab.installation import ROOT, installed
from tests.commands.sweep_tools import measured_sweep
from tests.demo.http_traffic import each_sent, exchange
from tests.engine.test_names import assert_true
from tests.lab.conftest import idle
from tests.waiting import until

pytestmark = pytest.mark.lab

REQUESTS = 24
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)


async def test_each_line_of_preflight_follows_from_traffic_of_known_make_up(lab, folder, program):
    vllm = lab("off", folder=folder)
    await vllm.start()
    settings = {"SPECDEC_VLLM_URL": vllm.url, "SPECDEC_PLUGIN__SOCKET": str(vllm.socket)}
    async with program("preflight", "--duration", "10m", "--json", **settings) as process:
        await until(vllm.socket.exists, seconds=30)  # a quick machine's engine would be idle before anybody listens
        await each_sent(range(REQUESTS), partial(_ask, vllm.url), 4)
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


async def _ask(url, http, number):
    place = number % 4
    body = {"model": "lab", "prompt": "The quick brown fox", "max_tokens": 24, "ignore_eos": True}
    body |= {"temperature": TEMPERATURES[place], "stream": place != 1} | ({"min_p": 0.05} if place == 3 else {})
    await exchange(http, f"{url}/v1/completions", body)


async def test_a_sweep_finds_what_vllm_counts_with_and_without_per_request_numbers(observed, lab):
    greedy = []
    for exact, vllm in ((True, observed), (False, lab("draft_model", "--no-request-metrics"))):
        await vllm.start()
        before = await idle(vllm.url)
        result = await measured_sweep(vllm.url, temperatures=(0.0, 0.8))
        counted = await idle(vllm.url)
        assert result.complete
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            counter = f"vllm:spec_decode_num_{name}_total"
            grown = counted.value(counter) - before.value(counter)
            assert sum(getattr(one.speculating.acceptance, name) for one in result.levels) == grown > 0, (exact, name)
        greedy.append(result.levels[0].speculating.acceptance.rate)
    # Greedy answers to the same prompts are the same; what is sampled at 0.8 is not.
    assert greedy[1] == pytest.approx(greedy[0], abs=0.05)


def test_a_page_has_what_its_truth_says(tmp_path):
    lab = installed()
    command = [lab.venv / "bin/python", "-m", "lab.pages", lab.model("target"), tmp_path]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, check=True)
    ((name, known),) = json.loads((tmp_path / "TRUTH.json").read_text()).items()
    assert known["engines"]["0"]["spec"]["accepted_tokens"] > 0
    assert_true((tmp_path / name).read_bytes(), known)
