"""A plain vLLM's traffic and ``sweep`` on a real vLLM.

Also the page that lab/pages.py writes of it.
"""

import json
import os
import subprocess
from functools import partial

import pytest

from lab.installation import ROOT, installed
from sidecar.app import running
from sidecar.settings import load_settings
from specdec_tools.commands.sidecar_status import sidecar_status
from tests.commands.sweep_tools import measured_sweep
from tests.demo.http_traffic import each_sent, exchange
from tests.engine.test_names import assert_true
from tests.lab.conftest import idle
from tests.waiting import until

pytestmark = pytest.mark.lab

REQUESTS = 24
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)


async def test_the_traffic_of_a_vllm_that_does_not_speculate_is_judged(lab, folder):
    """One of four requests uses a parameter that this vLLM would reject while it speculates."""
    vllm = lab("off", folder=folder)
    given = {"VLLM_URL": vllm.url, "PLUGIN__SOCKET": str(vllm.socket), "LISTEN": "127.0.0.1:0"}
    settings = load_settings(None, {f"SPECDEC_{name}": value for name, value in given.items()})
    async with running(settings) as address:
        await vllm.start()
        # The windows begin at the first poll.
        await until(partial(_is_up, f"http://{address}"), seconds=60)
        await each_sent(range(REQUESTS), partial(_ask, vllm.url), 4)
        await idle(vllm.url)
        known = await until(lambda: _checklist_of_all(f"http://{address}"), seconds=60)

    traffic = known["traffic"]
    assert (traffic["cool"], traffic["hot"], traffic["structured"]) == (0.5, 0.25, 0.0)
    assert traffic["output_tokens"] == [24, 24]
    assert traffic["first_token"] is not None
    assert traffic["rejected"] == {"min_p": 0.25}
    assert known["verdict"] == "leave_off"


async def _is_up(url):
    return (await sidecar_status(url, tls=False))["scrape"]["up"]


async def _checklist_of_all(url):
    """The checklist once all requests are counted."""
    status = await sidecar_status(url, tls=False)
    known = status["models"][0]["checklist"]
    return known if known["traffic"] and known["traffic"]["requests"] == REQUESTS else None


async def _ask(url, http, number):
    place = number % 4
    body = {"model": "lab", "prompt": "The quick brown fox", "max_tokens": 24, "ignore_eos": True}
    body |= {"temperature": TEMPERATURES[place], "stream": place != 1} | (
        {"min_p": 0.05} if place == 3 else {}
    )
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
            assert sum(getattr(one.whole.acceptance, name) for one in result.levels) == grown > 0, (
                exact,
                name,
            )
        greedy.append(result.levels[0].whole.acceptance.rate)
    # Greedy answers to the same prompts are the same; what is sampled at 0.8 is not.
    assert greedy[1] == pytest.approx(greedy[0], abs=0.05)


def test_a_page_has_what_its_truth_says(tmp_path):
    lab = installed()
    command = [lab.venv / "bin/python", "-m", "lab.pages", lab.model("target"), tmp_path]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, check=True)
    ((name, known),) = json.loads((tmp_path / "TRUTH.json").read_text()).items()
    assert known["engines"]["0"]["spec"]["accepted_tokens"] > 0
    assert_true((tmp_path / name).read_bytes(), known)
