"""The speedup beside a real vLLM, with a baseline that was measured on it: ten minutes.

``pytest -m "lab and measured" tests/lab/test_lab_speed.py``
"""

import asyncio
import contextlib
from random import Random

import pytest
import yaml

from sidecar.settings import load_settings
from specdec_tools.commands.baseline import measure
from specdec_tools.measuring.client import Client
from specdec_tools.measuring.workload import BUILT_IN, RequestOptions
from specdec_tools.plain.document import plain_steps
from tests.lab.conftest import sidecar

# A baseline is right only on a quiet machine.
pytestmark = [pytest.mark.lab, pytest.mark.measured]

AT_ONCE = 2
OPTIONS = RequestOptions(endpoint="completions", max_tokens=50)
SETTINGS = {
    "latency_window": "60s",
    "thresholds__min_requests": "5",
    "thresholds__min_drafts_per_second": "0",
}


async def baseline(plain, file):
    """Measures the plain server, and writes what ``specdec-sidecar baseline`` does."""
    measured = await measure(
        plain.url,
        load_settings(None, {}),
        300,
        (AT_ONCE, 2 * AT_ONCE),
        OPTIONS,
        contexts=(20, 600),
        socket=plain.socket,
    )
    steps = {
        model: plain_steps(found, measured.until) for model, found in measured.curves().items()
    }
    file.write_text(yaml.safe_dump({"plain_steps": steps}))


async def ask_all(client, prompts):
    """Sends the prompts, some at once."""
    waiting = iter(prompts)

    async def send():
        for prompt in waiting:
            await client.ask(prompt, 0.6, max_tokens=OPTIONS.max_tokens)

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))


@contextlib.asynccontextmanager
async def watched(ours):
    """What the sidecar says of the model, each second."""
    seen = []

    async def watch():
        while True:
            status = await ours.status()
            seen.extend(status["models"])
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_hot_prompts_sent_twice_keep_the_milliseconds(lab, tmp_path):
    """A prefix cache that gets warm is no reason to withhold the speedup, or to call for anyone."""
    plain = lab("off", "--target", "target-large", folder=tmp_path / "plain")
    await plain.start()
    file = tmp_path / "baseline.yaml"
    await baseline(plain, file)
    plain.kill()

    vllm = lab("draft_model", "--target", "target-large", folder=tmp_path / "speculating")
    await vllm.start()
    words = " ".join(BUILT_IN).split()
    prompts = [" ".join(Random(number).choices(words, k=100)) for number in range(60)]
    async with (
        sidecar(vllm, **SETTINGS, baseline_file=file) as ours,
        Client(vllm.url, OPTIONS, is_own=False) as client,
        watched(ours) as seen,
    ):
        await client.connect("the")
        await ask_all(client, prompts)
        first = len(seen)
        await ask_all(client, prompts)
        page = await ours()

    known = [number for number, model in enumerate(seen) if model["speed"]["speedup"]]
    assert known, {model["speed"]["withheld"] for model in seen}
    since = seen[known[0] :]

    assert known[0] < first
    assert page.value("specdec_prefix_cache_hit_ratio") > 0.4
    assert {model["speed"]["withheld"] for model in since} == {None}
    assert "net_negative" not in {model["judgement"]["verdict"] for model in since}
    assert {model["judgement"]["basis"] for model in since[-20:]} == {"speedup"}
