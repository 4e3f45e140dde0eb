"""The split by temperature of a real vLLM that has loaded the plug-in.

It is exact, live, and at no request's expense.
"""

import time
from collections import Counter, defaultdict

import aiohttp
import pytest

from sidecar.analysis.split.tallies import TemperatureBuckets
from tests.demo.http_traffic import send
from tests.lab.conftest import page_until, settled, sidecar
from tests.page import Page
from tests.requests.plain_receiver import COUNTS

pytestmark = pytest.mark.lab

MIX = {0.0: 2, 0.2: 2, 0.45: 2, 0.6: 2, 1.2: 2, None: 1}
DEFAULT = 1.0  # of the lab's model, for requests that name none
COUNTERS = {
    **{f"vllm:spec_decode_num_{name}_total": f"specdec_engine_{name}_total" for name in COUNTS},
    "vllm:generation_tokens_total": "specdec_generation_tokens_total",
    "vllm:prompt_tokens_total": "specdec_prompt_tokens_total",
    "vllm:prefix_cache_queries_total": "specdec_prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total": "specdec_prefix_cache_hits_total",
}


async def test_each_bucket_has_its_own_requests_numbers_which_sum_to_vllms(observed):
    await observed.start()
    async with sidecar(observed) as ours:
        theirs_before, before = await settled(observed, ours)
        sent = await send(observed.url, MIX, 60, model="lab")
        assert (sent.failed, sent.completed) == (0, 60)
        theirs, after = await settled(observed, ours)
        for name, own in COUNTERS.items():
            assert after.value(own) - before.value(own) == theirs.value(name) - theirs_before.value(
                name
            ), name
        for name in COUNTS:
            assert after.sum(f"specdec_{name}_total") == theirs.value(
                f"vllm:spec_decode_num_{name}_total"
            ), name
        for position in map(str, range(3)):
            theirs_at = theirs.value(
                "vllm:spec_decode_num_accepted_tokens_per_pos_total", position=position
            )
            assert (
                after.sum("specdec_accepted_tokens_per_position_total", position=position)
                == theirs_at
            )
            assert (
                after.value("specdec_engine_accepted_tokens_per_position_total", position=position)
                == theirs_at
            )
        replied = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
        for temperature, sums in sent.acceptance.items():
            label = TemperatureBuckets().label(
                round(100 * (DEFAULT if temperature is None else temperature))
            )
            for name in COUNTS:
                replied[label][name] += sums[name]
        grown = after.since(before)
        for label in TemperatureBuckets().labels:
            counted = {
                name: grown.sum(f"specdec_{name}_total", temperature=label) for name in COUNTS
            }
            assert counted == replied[label], label
        for temperature in (0.2, 0.45, 0.6, 1.2):  # at 0, settled() sends some too
            label = TemperatureBuckets().label(round(100 * temperature))
            ended = grown.sum("specdec_requests_total", outcome="length", temperature=label)
            assert ended == sent.by_temperature[temperature]
        await page_until(ours, lambda page: page.value("specdec_request_coverage_ratio") == 1)
        # Finished requests follow the totals; one of a single token drafts nothing.
        await page_until(
            ours,
            lambda page: page.since(before).sum("specdec_request_acceptance_ratio_count") == 60,
        )
        assert after.value("specdec_plugin_info", state="observing") == 1


async def test_the_steps_that_the_plugin_tells_are_vllms_own_to_the_step(observed):
    """As many, with as many tokens, and as long: what a speedup is computed from.

    vLLM stamps the same steps a little later.
    """
    await observed.start()
    async with sidecar(observed) as ours:
        theirs_before, before = await settled(observed, ours)
        sent = await send(observed.url, {0.2: 1, 0.6: 1, 1.2: 1}, 30, model="lab")
        assert (sent.failed, sent.completed) == (0, 30)
        theirs, _ = await settled(observed, ours)
        name = "vllm:inter_token_latency_seconds"
        grown = theirs.since(theirs_before)
        decoded = grown.sum("vllm:generation_tokens_total") - grown.sum(
            "vllm:time_to_first_token_seconds_count"
        )
        after = await page_until(
            ours,
            lambda page: (
                page.since(before).sum("specdec_decode_steps_total") >= grown.sum(f"{name}_count")
            ),
        )

    told = after.since(before)
    assert told.sum("specdec_decode_steps_total") == grown.sum(f"{name}_count")
    assert told.sum("specdec_decode_tokens_total") == decoded
    assert told.sum("specdec_decode_seconds_total") == pytest.approx(
        grown.sum(f"{name}_sum"), rel=0.02
    )


TIMES = ("time_to_first_token", "time_per_output_token", "duration")
ENGINE_TIMES = tuple(
    f"vllm:request_{name}_seconds"
    for name in ("time_per_output_token", "queue_time", "prefill_time")
)


async def test_times_by_temperature_are_within_the_clients_and_the_engines(observed):
    """One request at a time, so that a client waits for nothing but vLLM.

    How long HTTP takes is the machine's.

    vLLM stamps the same steps by the engine's clock, a part of a step after us, which a busy
    machine may stretch.
    """
    await observed.start()
    tokens, requests, clients = 80, 8, Counter()
    async with sidecar(observed) as ours, aiohttp.ClientSession() as http:
        theirs_before, before = await settled(observed, ours)
        body = {
            "model": "lab",
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0.6,
            "stream": True,
        }
        for number in range(requests):
            start, first = time.perf_counter(), 0.0
            async with http.post(
                f"{observed.url}/v1/completions", json=body | {"prompt": f"draft {number}"}
            ) as reply:
                async for line in reply.content:
                    if line.startswith(b"data: {") and b'"text":"' in line:
                        first = first or time.perf_counter() - start
            clients.update({"time_to_first_token": first, "duration": time.perf_counter() - start})

        def all_ended(page, names, then, **labels):
            return all(
                page.since(then).sum(f"{name}_count", **labels) == requests for name in names
            )

        names = [f"specdec_request_{name}_seconds" for name in TIMES]
        after = await page_until(
            ours, lambda page: all_ended(page, names, before, temperature="0.5-0.7")
        )
        theirs = await page_until(
            Page(observed.url), lambda page: all_ended(page, ENGINE_TIMES, theirs_before)
        )
    grown, engine = after.since(before), theirs.since(theirs_before)
    first, each, duration = (grown.sum(f"{name}_sum", temperature="0.5-0.7") for name in names)
    assert first <= clients["time_to_first_token"]
    assert duration <= clients["duration"]
    assert duration == pytest.approx(first + (tokens - 1) * each, rel=1e-3)
    per_token, queue, prefill = (engine.sum(f"{name}_sum") for name in ENGINE_TIMES)
    assert each == pytest.approx(per_token, rel=0.05)
    assert first > 0.8 * (queue + prefill)


MARKER = "xyzzy-plugh-4711"


async def test_no_text_of_a_prompt_gets_out(observed, caplog):
    await observed.start()
    async with sidecar(observed) as ours, aiohttp.ClientSession() as http:
        _, before = await settled(observed, ours)
        for stream in (False, True):
            body = {
                "model": "lab",
                "prompt": MARKER,
                "max_tokens": 8,
                "echo": True,
                "stream": stream,
            }
            async with http.post(f"{observed.url}/v1/completions", json=body) as reply:
                assert MARKER in await reply.text()
        await page_until(
            ours,
            lambda page: page.since(before).sum("specdec_requests_total", temperature="0.7-1") == 2,
        )
        for path in ("/metrics", "/api/v1/status", "/"):
            assert MARKER.encode() not in (await ours.get(path)).body
    assert MARKER not in caplog.text
