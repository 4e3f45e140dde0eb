"""The simulated vLLM as a server, and its traffic.

Its page is compared with a recorded one; its counters and restarts.
"""

import asyncio
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.server import SimulatedVllm
from specdec_tools.demo.traffic import MIXED, Traffic, TrafficOptions
from tests.demo.http_traffic import send
from tests.demo.http_vllm import HttpVllm
from tests.engine.engine_tools import snapshot
from tests.page import Page
from tests.waiting import until

FAST = SimulatorOptions(speed=20.0)


async def test_sums_of_replies_equal_the_counters_to_the_token():
    """As in the recordings of a real vLLM."""
    async with HttpVllm(FAST) as vllm:
        sent = await send(vllm.url, {0.0: 3, 0.7: 2, None: 2}, 150, concurrency=24, streamed=1)
    assert (sent.completed, sent.failed) == (150, 0)
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        replied = sum(sums[name] for sums in sent.acceptance.values())
        assert vllm.counter(f"spec_decode_num_{name}") == replied > 0
    name = "spec_decode_num_accepted_tokens"
    assert sum(
        vllm.counter(f"{name}_per_pos", position=str(position)) for position in range(3)
    ) == vllm.counter(name)
    assert vllm.counter("generation_tokens") == sent.completion_tokens
    assert vllm.counter("request_success", finished_reason="length") == 150
    # As in the recordings of the real one:
    assert vllm.value("inter_token_latency_seconds_count") == vllm.counter("spec_decode_num_drafts")
    for once in ("e2e_request_latency_seconds", "time_to_first_token_seconds"):
        assert vllm.value(f"{once}_count") == 150
    computed = vllm.counter("prompt_tokens") - vllm.counter("prefix_cache_hits")
    assert vllm.value("iteration_tokens_total_sum") == computed + sent.completion_tokens
    assert 0 < vllm.counter("prefix_cache_hits") < vllm.counter("prompt_tokens")
    assert vllm.value("num_requests_running") == vllm.value("kv_cache_usage_perc") == 0
    rates = {
        key: sums["accepted_tokens"] / sums["draft_tokens"] for key, sums in sent.acceptance.items()
    }
    assert rates[0.0] > rates[0.7] > rates[None]


async def test_an_engine_that_stops_breaks_off_what_runs_and_its_successor_starts_over():
    """What runs fails, and nothing but what a new engine says of itself is above 0."""
    async with HttpVllm() as vllm:
        traffic = Traffic(
            vllm, TrafficOptions(concurrency=2, max_requests=2, min_tokens=5000, max_tokens=5000)
        )
        running = asyncio.create_task(traffic.run())
        await until(lambda: vllm.counter("generation_tokens") > 20)
        await vllm.restart()
        await running

        assert (traffic.completed, traffic.failed) == (0, 2)
        samples = [sample for family in vllm.page.registry.collect() for sample in family.samples]
        above = {
            sample.name
            for sample in samples
            if sample.value and not sample.name.endswith("_created")
        }
        assert above == {
            "process_start_time_seconds",
            "vllm:cache_config_info",
            "vllm:engine_sleep_state",
        }


async def test_traffic_has_the_mix_asked_for():
    requests = []
    async with HttpVllm(FAST) as vllm:
        options = TrafficOptions(mixes=(MIXED,), max_requests=400, max_tokens=20)
        await Traffic(vllm, options, ended=requests.append).run()
    temperatures = Counter(request.sampling_params.temperature for request in requests)
    assert temperatures == pytest.approx({0.0: 120, 0.3: 80, 0.7: 80, 1.0: 120}, abs=32)
    assert sum(request.use_structured_output for request in requests) == pytest.approx(80, abs=32)
    assert sum(request.num_prompt_tokens > 512 for request in requests) == pytest.approx(80, abs=32)


async def test_mixes_follow_each_other_and_then_repeat():
    requests = []
    async with HttpVllm(SimulatorOptions(speed=50.0)) as vllm:
        mixes = ({0.0: 1}, {1.0: 1})
        options = TrafficOptions(
            mixes, mix_seconds=10.0, concurrency=1, max_requests=30, max_tokens=16
        )
        # Each request takes a second of this clock.
        await Traffic(
            vllm, options, clock=lambda: float(len(requests)), ended=requests.append
        ).run()
    temperatures = [request.sampling_params.temperature for request in requests]
    assert temperatures == [0.0] * 10 + [1.0] * 10 + [0.0] * 10


RECORDED = "vllm-0.32.0.prom"


async def fetched(vllm, path="/metrics"):
    return (await Page(vllm.url).get(path)).body


def families(page):
    """Each family's type, and its samples without values and the model's name."""
    return {
        family.name: (
            family.type,
            [(sample.name, sample.labels | {"model_name": ""}) for sample in family.samples],
        )
        for family in text_string_to_metric_families(page.decode())
    }


@pytest.mark.parametrize("positions", [0, 3])
async def test_each_family_is_as_in_the_recorded_page_and_in_its_order(positions, recorded):
    async with SimulatedVllm(SimulatorOptions(num_speculative_tokens=positions)) as vllm:
        simulated, real = families(await fetched(vllm)), families(recorded(RECORDED))
    _, ((_, labels),) = simulated.pop("vllm:cache_config_info")
    assert labels.keys() < real["vllm:cache_config_info"][1][0][1].keys()
    assert list(simulated.items()) == [
        (name, family) for name, family in real.items() if name in simulated
    ]
    assert any("spec_decode" in name for name in simulated) == bool(positions)


async def test_the_sidecar_reads_from_it_all_that_it_reads_from_the_recorded_page(recorded):
    async with SimulatedVllm(SimulatorOptions(num_gpu_blocks=1000, block_size=32)) as vllm:
        pages = await fetched(vllm), recorded(RECORDED)
    (simulated,), (real,) = (snapshot(page).engines for page in pages)
    assert simulated.kv_cache_capacity_tokens == 32_000
    for quantities in ("counters", "gauges", "histograms"):
        assert getattr(simulated, quantities).keys() == getattr(real, quantities).keys()
    assert simulated.traits == real.traits


async def test_names_restrict_the_page_under_metrics_slash_alone():
    """As vLLM's own server does, where `/metrics` without the slash ignores them."""
    name = "vllm:num_requests_running"
    async with SimulatedVllm() as vllm:
        assert list(families(await fetched(vllm, f"/metrics/?name[]={name}"))) == [name]
        for path in ("/metrics/?name[]=", f"/metrics?name[]={name}"):
            assert b"vllm:kv_cache_usage_perc" in await fetched(vllm, path)
