"""How the outputs of a real vLLM end."""

import asyncio
import os
import subprocess
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, product

import aiohttp
import pytest

from lab.installation import installed
from specdec_tools.commands.plugin import write_plugin
from specdec_tools.measuring.workload import BUILT_IN
from tests.demo.http_traffic import each_sent, exchange
from tests.lab.conftest import ROOT, idle, page_until, settled, sidecar
from tests.lab.stages import changed_model
from tests.requests.test_endings import is_loop
from tests.waiting import until

pytestmark = pytest.mark.lab

VOCABULARY = 326  # tokens of the lab's models
# Of the output weights, in float32: in bfloat16 two tokens may have the same logit, and then either
# follows, whatever the factor.
PEAKED = 2**14
PRECISE = ("--dtype", "float32")


def test_a_loop_is_what_vllm_s_own_detection_calls_one(tmp_path):
    """The plug-in's detection is compared with vLLM's, in vLLM's own Python."""
    write_plugin(tmp_path)
    command = [installed().venv / "bin/python", ROOT / "tests/lab/vllm_repetition.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@dataclass(frozen=True)
class Reply:
    """A reply as its client sees it: its tokens, and what vLLM says that it drafted."""

    tokens: list[int]
    draft_tokens: int
    accepted_tokens: int


async def ask(http, url, prompt, temperature):
    body = {
        "model": "lab",
        "prompt": prompt,
        "temperature": temperature,
        "max_tokens": 200,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    reply = await exchange(http, f"{url}/v1/completions", body)
    (choice,) = reply["choices"]
    numbers = reply["metrics"]["speculative_decoding"]
    return Reply(
        choice["token_ids"], numbers["num_draft_tokens"], numbers["num_accepted_draft_tokens"]
    )


async def replies_of(url, *temperatures):
    """A reply of 200 tokens to each prompt at each temperature."""
    found = []

    async def one(http, asked):
        found.append(await ask(http, url, *asked))

    await each_sent(product(BUILT_IN, temperatures), one, 4)
    return found


def rate(replies):
    drafted = sum(reply.draft_tokens for reply in replies)
    return sum(reply.accepted_tokens for reply in replies) / drafted


async def test_the_lab_s_loops_at_temperature_0_are_counted(observed):
    """As many as the clients see, with their draft tokens; its model loops there by itself."""
    await observed.start()
    async with sidecar(observed) as ours:
        _, before = await settled(observed, ours)
        replies = await replies_of(observed.url, 0, 0.7)
        await page_until(
            ours,
            lambda page: page.since(before).sum("specdec_request_endings_total") >= len(replies),
        )
        _, after = await settled(observed, ours)
        (model,) = (await ours.status())["models"]

    grown = after.since(before)
    loops = [reply for reply in replies if is_loop(reply.tokens)]
    others = [reply for reply in replies if not is_loop(reply.tokens)]
    group = {"by": "ending", "group": "loop"}

    assert loops
    assert grown.value("specdec_request_endings_total", ending="loop", temperature="0") == len(
        loops
    )
    assert grown.value("specdec_group_requests_total", **group) == len(loops)
    for name in ("draft_tokens", "accepted_tokens"):
        seen = sum(getattr(reply, name) for reply in loops)
        assert grown.value(f"specdec_group_{name}_total", **group) == seen

    said = model["judgement"]["evidence"]["loops"]
    assert said["rate"] == pytest.approx(rate(loops), abs=0.001)
    assert said["without"] == pytest.approx(rate(others), abs=0.001)
    assert said["whole"] == pytest.approx(rate(replies), abs=0.001)


async def test_a_reply_that_stops_at_once_is_empty(observed):
    """As in the simulated vLLM, the token that ends it counts, and nothing was drafted."""
    await observed.start()
    end = {"stop_token_ids": [*range(VOCABULARY)], "temperature": 0.7, "max_tokens": 50}
    async with sidecar(observed) as ours:
        _, before = await settled(observed, ours)
        theirs_before = await idle(observed.url)
        async with aiohttp.ClientSession() as http:
            body = {"model": "lab", "prompt": "draft", **end}
            reply = await exchange(http, f"{observed.url}/v1/completions", body)
        theirs = (await idle(observed.url)).since(theirs_before)
        page = await page_until(
            ours,
            lambda page: page.since(before).value(
                "specdec_request_endings_total", ending="empty", temperature="0.5-0.7"
            ),
        )

    assert reply["choices"][0]["finish_reason"] == "stop"
    assert theirs.value("vllm:generation_tokens_total") == 1
    assert theirs.value("vllm:request_success_total", finished_reason="stop") == 1
    assert theirs.sum("vllm:spec_decode_num_drafts_total") == 0
    assert page.since(before).sum("specdec_group_drafts_total", by="ending", group="empty") == 0


@asynccontextmanager
async def traffic(url):
    """Replies at temperatures 0 and 0.7 in turn, four at a time, until the block ends."""

    async def one(http, asked):
        prompt, temperature = asked
        body = {
            "model": "lab",
            "prompt": prompt,
            "temperature": temperature,
            "max_tokens": 150,
            "ignore_eos": True,
        }
        await exchange(http, f"{url}/v1/completions", body)

    requests = cycle(product(BUILT_IN, (0, 0.7)))
    sending = asyncio.create_task(each_sent(requests, one, 4))
    try:
        yield
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def bad_endings(ours):
    """The codes of what the page says of how replies end."""
    models = (await ours.status())["models"]
    codes = {finding["code"] for model in models for finding in model["explanations"]}
    return codes & {"looping", "empty_replies"}


async def endings(ours):
    """The requests whose endings the page knows."""
    models = (await ours.status())["models"]
    known = [model["endings"] for model in models if model["endings"] is not None]
    return sum(one["requests"] for one in known)


@pytest.mark.measured
@pytest.mark.limit(1800)
async def test_a_server_made_to_loop_is_named_and_the_model_s_own_loops_are_not(
    lab, folder, finished, record_property
):
    """The lab's model loops at temperature 0, which the baseline of plain decoding has, too.

    A target whose likeliest token is far likelier repeats itself at 0.7 as well.
    """
    baseline = folder / "baseline.yaml"
    plain = lab("off", folder=folder / "plain")
    await plain.start()
    async with traffic(plain.url):
        watching = ("--duration", "60s", "--plugin-socket", plain.socket, "--out", baseline)
        code, _, err = await finished("baseline", "--url", plain.url, *map(str, watching))
    plain.kill()
    assert code == 0, err
    assert "plain_endings" in baseline.read_text()

    sound = lab("draft_model", folder=folder / "sound")
    await sound.start()
    async with sidecar(sound, baseline_file=baseline) as ours, traffic(sound.url):

        async def many_are_known():
            return await endings(ours) >= 60

        await until(many_are_known, seconds=300, pause=1)
        (model,) = (await ours.status())["models"]

        assert model["endings"]["shares"]["loop"] > 0.2
        assert model["endings"]["changes"]["loop"]["reference"] == "baseline"
        assert await bad_endings(ours) == set()
    sound.kill()

    peaked = changed_model("target", folder, factor=PEAKED)
    broken = lab("draft_model", "--target", str(peaked), *PRECISE, folder=folder / "broken")
    await broken.start()
    async with sidecar(broken, baseline_file=baseline) as ours, traffic(broken.url):
        known = []

        async def is_named():
            known[:] = [model["endings"] for model in (await ours.status())["models"]]
            return await bad_endings(ours)

        begun = time.monotonic()
        await until(is_named, {"looping"}, seconds=300, pause=1, detail=lambda: known)
        (model,) = (await ours.status())["models"]
        page = await ours()
        record_property("named after seconds of traffic", time.monotonic() - begun)
        record_property("as the page says it", [one["what"] for one in model["explanations"]])

        assert page.value("specdec_finding", finding="looping") == 1
