"""The simulated metrics page against the recorded one of vLLM 0.32."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from tests.engine.engine_tools import snapshot

RECORDED = "vllm-0.32.0.prom"


async def fetched(http, sim, path="/metrics"):
    async with http.get(sim.url + path) as response:
        assert response.status == 200
        return await response.read()


def families(page):
    """Each family's type, and its samples but for values and the name of the model."""
    return {
        family.name: (family.type, [(one.name, {**one.labels, "model_name": ""}) for one in family.samples])
        for family in text_string_to_metric_families(page.decode())
    }


@pytest.mark.parametrize("positions", [0, 3])
async def test_each_family_is_as_in_the_recorded_page_and_in_its_order(positions, http, recorded):
    async with SimulatedVllm(SimulatorOptions(num_speculative_tokens=positions)) as sim:
        simulated, real = families(await fetched(http, sim)), families(recorded(RECORDED))
    _, ((_, labels),) = simulated.pop("vllm:cache_config_info")
    assert labels.keys() < real["vllm:cache_config_info"][1][0][1].keys()
    assert list(simulated.items()) == [(name, found) for name, found in real.items() if name in simulated]
    assert any("spec_decode" in name for name in simulated) == bool(positions)


async def test_the_sidecar_reads_from_it_all_that_it_reads_from_the_recorded_page(http, recorded):
    def read(page):
        found = snapshot(page)
        (engine,) = found.engines
        return engine.counters.keys(), engine.gauges.keys(), engine.histograms.keys(), engine.traits

    async with SimulatedVllm() as sim:
        assert read(await fetched(http, sim)) == read(recorded(RECORDED))


def test_cache_config_tells_the_capacity_in_tokens():
    page = SimulatedVllm(SimulatorOptions(num_gpu_blocks=1000, block_size=32)).page
    (info,) = page.registry.restricted_registry(["vllm:cache_config_info"]).collect()
    assert info.samples[0].labels["kv_cache_size_tokens"] == "32000"


async def test_names_restrict_the_page_under_metrics_slash_alone(http):
    name = "vllm:num_requests_running"
    async with SimulatedVllm() as sim:
        assert list(families(await fetched(http, sim, f"/metrics/?name[]={name}"))) == [name]
        assert b"vllm:kv_cache_usage_perc" in await fetched(http, sim, "/metrics/?name[]=")
        assert b"vllm:kv_cache_usage_perc" in await fetched(http, sim, f"/metrics?name[]={name}")
