"""The simulated vLLM as a server: its counters against its replies, aborts, restarts; and its traffic."""

import asyncio

import pytest

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import MIXED, Phase, Traffic, TrafficOptions, cold_hot_cold
from tests.demo.faulty_vllm import FaultyVllm
from tests.demo.http_traffic import send
from tests.demo.http_vllm import HttpVllm

FAST = SimulatorOptions(speed=20.0)


async def test_sums_of_replies_equal_the_counters_to_the_token():
    async with HttpVllm(FAST) as sim:
        sent = await send(sim.url, {0.0: 3, 0.7: 2, None: 2}, 150, concurrency=24, streamed=1)
    assert (sent.completed, sent.failed) == (150, 0)
    sums = sent.acceptance.values()
    drafts = sum(one.drafts for one in sums)
    assert sim.value("spec_decode_num_drafts_total") == drafts > 0
    assert sim.value("spec_decode_num_draft_tokens_total") == sum(one.draft_tokens for one in sums)
    accepted = sum(one.accepted_tokens for one in sums)
    assert sim.value("spec_decode_num_accepted_tokens_total") == accepted
    positions = (sim.value("spec_decode_num_accepted_tokens_per_pos_total", position=str(one)) for one in range(3))
    assert sum(positions) == accepted
    assert sim.value("generation_tokens_total") == sent.completion_tokens
    assert sim.value("request_success_total", finished_reason="length") == 150
    assert sim.value("inter_token_latency_seconds_count") == drafts  # as in the recordings of the real one
    for once in ("e2e_request_latency_seconds", "time_to_first_token_seconds"):
        assert sim.value(f"{once}_count") == 150
    computed = sim.value("prompt_tokens_total") - sim.value("prefix_cache_hits_total")
    assert sim.value("iteration_tokens_total_sum") == computed + sent.completion_tokens
    assert 0 < sim.value("prefix_cache_hits_total") < sim.value("prompt_tokens_total")
    assert sim.value("num_requests_running") == sim.value("kv_cache_usage_perc") == 0
    rates = {temperature: one.accepted_tokens / one.draft_tokens for temperature, one in sent.acceptance.items()}
    assert rates[0.0] > rates[0.7] > rates[None]


async def test_restart_starts_over_and_breaks_off_what_runs(eventually):
    async with FaultyVllm() as sim:
        before = sim.page.registry
        traffic = Traffic(sim, TrafficOptions(concurrency=2, max_requests=2, min_tokens=5000, max_tokens=5000))
        running = asyncio.create_task(traffic.run())
        await eventually(lambda: sim.counter("generation_tokens") > 20)
        await sim.restart()
        await running
        assert (traffic.completed, traffic.failed) == (0, 2)
        samples = [one for family in sim.page.registry.collect() for one in family.samples]
        above = {one.name for one in samples if one.value and not one.name.endswith("_created")}
        assert above == {"vllm:cache_config_info", "process_start_time_seconds"}
        started = "process_start_time_seconds"
        assert sim.page.registry.get_sample_value(started) > before.get_sample_value(started)


async def test_traffic_has_the_mix_asked_for():
    sent = []
    async with FaultyVllm(FAST) as sim:
        options = TrafficOptions(phases=(Phase(600.0, MIXED),), max_requests=400, max_tokens=20)
        await Traffic(sim, options, ended=sent.append).run()
    found = [request.sampling_params.temperature for request in sent]
    assert {one: found.count(one) for one in MIXED} == pytest.approx({0.0: 120, 0.3: 80, 0.7: 80, 1.0: 120}, abs=32)
    assert sum(request.use_structured_output for request in sent) == pytest.approx(80, abs=32)
    assert sum(request.num_prompt_tokens > 512 for request in sent) == pytest.approx(80, abs=32)


async def test_phases_follow_each_other_and_then_repeat():
    seen, phases = [], (Phase(20.0, {0.0: 1}), Phase(10.0, {1.0: 1}))
    async with FaultyVllm(SimulatorOptions(speed=50.0)) as sim:
        options = TrafficOptions(phases=phases, concurrency=1, max_requests=50, max_tokens=16)
        # Each request takes a second of this clock.
        traffic = Traffic(
            sim,
            options,
            clock=lambda: float(len(seen)),
            ended=lambda request: seen.append(request.sampling_params.temperature),
        )
        await traffic.run()
    assert seen == [0.0] * 20 + [1.0] * 10 + [0.0] * 20
    assert sum(phase.seconds for phase in cold_hot_cold(100.0)) == 100.0
