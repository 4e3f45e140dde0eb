"""The split by temperature of a real vLLM that has loaded the plug-in: exact, live, and at no request's expense."""

import asyncio
import os
import signal
import sys
import time
from collections import defaultdict
from contextlib import asynccontextmanager

import aiohttp
import pytest

from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.app import running
from sidecar.settings import load_settings
from tests.debian_servers import free_port
from tests.lab.conftest import completed

pytestmark = pytest.mark.lab

MIX = {0.0: 2, 0.2: 2, 0.45: 2, 0.6: 2, 1.2: 2, None: 1}
DEFAULT = 1.0  # of the lab's model, for requests that name none
COUNTS = ("drafts", "draft_tokens", "accepted_tokens")


def environment(vllm, **more):
    polls = {"SPECDEC_SCRAPE_CPU_SHARE": "1"}  # each second, however long a busy machine takes for a page
    return {"SPECDEC_VLLM_URL": vllm.url, "SPECDEC_PLUGIN__SOCKET": str(vllm.socket), **polls, **more}


@asynccontextmanager
async def sidecar(vllm, **more):
    """A sidecar in this process; gives its page's address."""
    async with running(load_settings(None, environment(vllm, SPECDEC_LISTEN="127.0.0.1:0", **more))) as address:
        yield f"http://{address}"


async def settled(samples, vllm, ours):
    """Both pages once vLLM has nothing to do and ours has all of it: its counters and, by temperature, the plug-in's.

    An idle engine notices a new sidecar with its next step, so it is given one.
    """
    body = {"model": "lab", "prompt": "draft", "max_tokens": 1, "temperature": 0}
    async with aiohttp.ClientSession() as http, http.post(f"{vllm.url}/v1/completions", json=body) as reply:
        assert reply.status == 200
    theirs = await samples.idle(vllm.url)
    drafted = theirs.value("vllm:spec_decode_num_draft_tokens_total")

    def has_all(found):
        return found.value("specdec_engine_draft_tokens_total") == found.sum("specdec_draft_tokens_total") == drafted

    return theirs, await samples.until(ours, has_all)


async def test_each_bucket_has_its_requests_own_numbers_and_together_they_have_vllms(observed, samples):
    await observed.start()
    async with sidecar(observed) as ours:
        _, before = await settled(samples, observed, ours)
        sent = await completed(observed.url, MIX, 60)
        theirs, after = await settled(samples, observed, ours)
        for name in COUNTS:
            assert after.sum(f"specdec_{name}_total") == theirs.value(f"vllm:spec_decode_num_{name}_total"), name
        for position in map(str, range(3)):
            theirs_at = theirs.value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=position)
            assert after.sum("specdec_accepted_tokens_per_position_total", position=position) == theirs_at
        told = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
        for temperature, sums in sent.acceptance.items():
            label = TemperatureBuckets().label(round(100 * (DEFAULT if temperature is None else temperature)))
            for name in COUNTS:
                told[label][name] += getattr(sums, name)
        grown = after.since(before)
        for label in TemperatureBuckets().labels:
            counted = {name: grown.sum(f"specdec_{name}_total", temperature=label) for name in COUNTS}
            assert counted == told[label], label
        for temperature in (0.2, 0.45, 0.6, 1.2):  # at 0, settled() sends some too
            label = TemperatureBuckets().label(round(100 * temperature))
            ended = grown.sum("specdec_requests_total", outcome="length", temperature=label)
            assert ended == sent.by_temperature[temperature]
        await samples.until(ours, lambda found: found.value("specdec_request_coverage_ratio") == 1)
        await samples.until(  # finished requests follow the totals; one of a single token drafts nothing
            ours, lambda found: found.since(before).sum("specdec_request_acceptance_ratio_count") == 60
        )
        assert after.value("specdec_plugin_info", state="observing") == 1


async def test_long_requests_count_while_they_run(observed, samples):
    await observed.start()
    body = {"model": "lab", "prompt": "draft", "max_tokens": 1900, "ignore_eos": True, "temperature": 0.9}
    # A tick comes once a second; a sidecar that polls as seldom may show it when a quick machine's requests have ended.
    async with sidecar(observed, SPECDEC_SCRAPE_INTERVAL="100ms") as ours, aiohttp.ClientSession() as http:

        async def post():
            async with http.post(f"{observed.url}/v1/completions", json=body) as reply:
                return reply.status

        _, before = await settled(samples, observed, ours)
        posts = asyncio.gather(*(post() for _ in range(8)))

        def growing(found):
            grown = found.since(before)
            ended = grown.sum("specdec_requests_total", temperature="0.7-1")
            return grown.sum("specdec_draft_tokens_total", temperature="0.7-1") > 100 and not ended

        await samples.until(ours, growing)
        assert await posts == [200] * 8


TIMES = ("time_to_first_token", "time_per_output_token", "duration")


async def test_times_by_temperature_are_within_the_clients_and_the_engines(observed, samples):
    """One request at a time, so that a client waits for nothing but vLLM; how long HTTP takes is the machine's."""
    await observed.start()
    clients = {"time_to_first_token": 0.0, "duration": 0.0}
    count, tokens = 8, 80
    async with sidecar(observed) as ours, aiohttp.ClientSession() as http:
        theirs_before, before = await settled(samples, observed, ours)
        body = {"model": "lab", "max_tokens": tokens, "ignore_eos": True, "temperature": 0.6, "stream": True}
        for number in range(count):
            start, first = time.perf_counter(), 0.0
            async with http.post(f"{observed.url}/v1/completions", json=body | {"prompt": f"draft {number}"}) as reply:
                async for line in reply.content:
                    if line.startswith(b"data: {") and b'"text":"' in line:
                        first = first or time.perf_counter() - start
            clients["time_to_first_token"] += first
            clients["duration"] += time.perf_counter() - start

        def has_all(found):
            counts = [
                found.since(before).sum(f"specdec_request_{name}_seconds_count", temperature="0.5-0.7")
                for name in TIMES
            ]
            return counts == [count] * len(TIMES)

        grown = (await samples.until(ours, has_all)).since(before)
        engine = (await samples(observed.url)).since(theirs_before)
    found = {name: grown.sum(f"specdec_request_{name}_seconds_sum", temperature="0.5-0.7") for name in TIMES}
    for name, total in clients.items():
        assert found[name] <= total, name
    decoding = found["time_per_output_token"]
    assert found["duration"] == pytest.approx(found["time_to_first_token"] + (tokens - 1) * decoding, rel=1e-3)
    # vLLM times these two by the engine's clock, too: between its stamps and ours lies a part of a step.
    assert decoding == pytest.approx(engine.sum("vllm:request_time_per_output_token_seconds_sum"), rel=0.05)
    until_first = sum(engine.sum(f"vllm:request_{name}_time_seconds_sum") for name in ("queue", "prefill"))
    assert found["time_to_first_token"] > 0.8 * until_first


async def test_a_sidecar_that_is_killed_again_and_again_harms_nothing(observed, samples):
    await observed.start()
    given = environment(observed, SPECDEC_LISTEN=f"127.0.0.1:{free_port()}")
    url = f"http://{given['SPECDEC_LISTEN']}"
    ending = asyncio.Event()

    async def traffic():
        while not ending.is_set():
            await completed(observed.url, MIX, 11)

    sending = asyncio.create_task(traffic())
    for _ in range(5):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sidecar", "run", env=os.environ | given, stderr=asyncio.subprocess.DEVNULL
        )
        # Without traffic, the engine would never notice this one.
        await samples.until(url, lambda found: bool(found.sum("specdec_plugin_info", state="observing")))
        process.send_signal(signal.SIGKILL)
        await process.wait()
    ending.set()
    await sending
    async with sidecar(observed) as ours:
        theirs, found = await settled(samples, observed, ours)
        for name in COUNTS:
            assert found.sum(f"specdec_{name}_total") == theirs.value(f"vllm:spec_decode_num_{name}_total"), name


MARKER = "xyzzy-plugh-4711"


async def test_no_text_of_a_prompt_gets_out(observed, samples, caplog):
    await observed.start()
    async with sidecar(observed) as ours, aiohttp.ClientSession() as http:
        _, before = await settled(samples, observed, ours)
        for stream in (False, True):
            body = {"model": "lab", "prompt": MARKER, "max_tokens": 8, "echo": True, "stream": stream}
            async with http.post(f"{observed.url}/v1/completions", json=body) as reply:
                assert MARKER in await reply.text()
        await samples.until(
            ours, lambda found: found.since(before).sum("specdec_requests_total", temperature="0.7-1") == 2
        )
        for path in ("/metrics", "/api/v1/status", "/"):
            async with http.get(ours + path) as response:
                assert MARKER not in await response.text()
    assert MARKER not in caplog.text
