"""The simulated metrics page against the recorded one of vLLM 0.32."""

import pytest

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from tests.engine.engine_tools import snapshot


@pytest.fixture
def recorded(data, parse_page):
    return parse_page((data / "pages/vllm-0.32.0.prom").read_text())


async def page_text(client, sim, path="/metrics"):
    async with client.get(sim.url + path) as response:
        assert response.status == 200
        return await response.text()


def shape(samples):
    """Everything but values and the name of the model."""
    return [
        (sample, [pair if pair[0] != "model_name" else pair[0] for pair in labels]) for sample, labels, _ in samples
    ]


@pytest.mark.parametrize("positions", [0, 3])
async def test_each_family_is_as_in_the_recorded_page_and_in_its_order(client, recorded, parse_page, positions):
    async with SimulatedVllm(SimulatorOptions(num_speculative_tokens=positions)) as sim:
        simulated = parse_page(await page_text(client, sim))
    config = simulated.pop("vllm:cache_config_info")
    assert dict(config[2][0][1]).keys() < dict(recorded["vllm:cache_config_info"][2][0][1]).keys()
    assert list(simulated) == [name for name in recorded if name in simulated]
    for name, (kind, text, samples) in simulated.items():
        assert (kind, text, shape(samples)) == (*recorded[name][:2], shape(recorded[name][2])), name
    assert any("spec_decode" in name for name in simulated) == bool(positions)


async def test_the_sidecar_reads_from_it_all_that_it_reads_from_the_recorded_page(client, data):
    def read(page):
        found = snapshot(page)
        (engine,) = found.engines
        return engine.counters.keys(), engine.gauges.keys(), engine.histograms.keys(), engine.traits

    async with SimulatedVllm() as sim:
        simulated = (await page_text(client, sim)).encode()
    assert read(simulated) == read((data / "pages/vllm-0.32.0.prom").read_bytes())


async def test_page_starts_at_zero_but_for_what_describes_the_server(client, parse_page):
    async with SimulatedVllm() as sim:
        page = parse_page(await page_text(client, sim))
    above = {
        sample
        for name, (_, _, samples) in page.items()
        for sample, _, value in samples
        if value and name.startswith("vllm:") and not sample.endswith("_created")
    }
    assert above == {"vllm:cache_config_info"}


def test_cache_config_tells_the_capacity_in_tokens():
    page = SimulatedVllm(SimulatorOptions(num_gpu_blocks=1000, block_size=32)).page
    (info,) = page.registry.restricted_registry(["vllm:cache_config_info"]).collect()
    assert info.samples[0].labels["kv_cache_size_tokens"] == "32000"


async def test_names_restrict_the_page_under_metrics_slash_alone(client, parse_page):
    name = "vllm:num_requests_running"
    async with SimulatedVllm() as sim:
        assert list(parse_page(await page_text(client, sim, f"/metrics/?name[]={name}"))) == [name]
        assert "vllm:kv_cache_usage_perc" in await page_text(client, sim, "/metrics/?name[]=")
        assert "vllm:kv_cache_usage_perc" in await page_text(client, sim, f"/metrics?name[]={name}")
