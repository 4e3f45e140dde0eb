"""The simulated metrics page against the recorded one of vLLM 0.32."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from tests.engine.engine_tools import snapshot

RECORDED = "vllm-0.32.0.prom"


async def fetched(http, vllm, path="/metrics"):
    async with http.get(vllm.url + path) as response:
        assert response.status == 200
        return await response.read()


def families(page):
    """Each family's type, and its samples without values and the model's name."""
    return {
        family.name: (family.type, [(sample.name, sample.labels | {"model_name": ""}) for sample in family.samples])
        for family in text_string_to_metric_families(page.decode())
    }


@pytest.mark.parametrize("positions", [0, 3])
async def test_each_family_is_as_in_the_recorded_page_and_in_its_order(positions, http, recorded):
    async with SimulatedVllm(SimulatorOptions(num_speculative_tokens=positions)) as vllm:
        simulated, real = families(await fetched(http, vllm)), families(recorded(RECORDED))
    _, ((_, labels),) = simulated.pop("vllm:cache_config_info")
    assert labels.keys() < real["vllm:cache_config_info"][1][0][1].keys()
    assert list(simulated.items()) == [(name, family) for name, family in real.items() if name in simulated]
    assert any("spec_decode" in name for name in simulated) == bool(positions)


async def test_the_sidecar_reads_from_it_all_that_it_reads_from_the_recorded_page(http, recorded):
    async with SimulatedVllm(SimulatorOptions(num_gpu_blocks=1000, block_size=32)) as vllm:
        pages = await fetched(http, vllm), recorded(RECORDED)
    (simulated,), (real,) = (snapshot(page).engines for page in pages)
    assert simulated.kv_cache_capacity_tokens == 32_000
    for quantities in ("counters", "gauges", "histograms"):
        assert getattr(simulated, quantities).keys() == getattr(real, quantities).keys()
    assert simulated.traits == real.traits


async def test_names_restrict_the_page_under_metrics_slash_alone(http):
    name = "vllm:num_requests_running"
    async with SimulatedVllm() as vllm:
        assert list(families(await fetched(http, vllm, f"/metrics/?name[]={name}"))) == [name]
        for path in ("/metrics/?name[]=", f"/metrics?name[]={name}"):
            assert b"vllm:kv_cache_usage_perc" in await fetched(http, vllm, path)
