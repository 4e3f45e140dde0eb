import asyncio

import yaml

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.demo.traffic import MIXED, Phase, Traffic, TrafficOptions
from sidecar.settings import load_settings

NOWHERE = "http://127.0.0.1:1"


async def test_baseline_writes_what_the_settings_read(finished, tmp_path):
    file = tmp_path / "baseline.yaml"
    async with SimulatedVllm(SimulatorOptions(speed=5)) as vllm:
        traffic = Traffic(TrafficOptions(vllm.url, phases=(Phase(30, MIXED),)))
        sending = asyncio.create_task(traffic.run())
        code, out, err = await finished("baseline", "--duration", "3s", "--out", str(file), SPECDEC_VLLM_URL=vllm.url)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert (code, out) == (0, ""), err
    phases = yaml.safe_load(file.read_text())["baseline"]["demo"]
    assert set(phases) == {"ttft", "itl", "tpot", "e2e", "queue"}
    loaded = load_settings(None, {"SPECDEC_BASELINE_FILE": str(file)}).baselines["demo"]
    assert loaded["tpot"][0.99] == phases["tpot"]["p99"] > 0


async def test_baseline_of_an_idle_vllm_writes_nothing(finished, tmp_path):
    async with SimulatedVllm() as vllm:
        code, out, err = await finished("baseline", "--duration", "1s", SPECDEC_VLLM_URL=vllm.url)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == (
        "no request finished while watching, so there is nothing to write; watch for longer, or send traffic"
    )


async def test_baseline_of_a_vllm_that_is_down_says_so_once(finished):
    code, out, err = await finished("baseline", "--duration", "2s", SPECDEC_VLLM_URL=NOWHERE)
    assert (code, out) == (1, "")
    _, fault, end = err.splitlines()
    assert fault.startswith("no page (unreachable): ")
    assert end.startswith(f"cannot read vLLM's page at {NOWHERE}, ")


async def test_a_baseline_of_two_servers_with_one_model_keeps_them_apart(finished, tmp_path):
    """What one of them served before the watch is nobody's growth."""
    config = tmp_path / "two.yaml"
    async with SimulatedVllm(SimulatorOptions(speed=20)) as busy, SimulatedVllm() as idle:
        await Traffic(TrafficOptions(busy.url, phases=(Phase(30, MIXED),), max_requests=10)).run()
        urls = {"busy": busy.url, "idle": idle.url}
        targets = [{"name": name, "vllm_url": url} for name, url in urls.items()]
        config.write_text(yaml.safe_dump({"targets": targets, "scrape_interval": "0.2s"}))
        code, out, err = await finished("baseline", "--duration", "1s", "--config", str(config))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("no request finished while watching, so there is nothing to write")


async def test_a_baseline_that_cannot_be_written_is_refused_at_once_or_printed(finished, tmp_path):
    nowhere = tmp_path / "none" / "baseline.yaml"
    code, out, err = await finished("baseline", "--duration", "10m", "--out", str(nowhere), SPECDEC_VLLM_URL=NOWHERE)
    assert (code, out) == (2, "")
    assert f"argument --out: {nowhere}: no such directory" in err
    async with SimulatedVllm(SimulatorOptions(speed=5)) as vllm:
        traffic = Traffic(TrafficOptions(vllm.url, phases=(Phase(30, MIXED),)))
        sending = asyncio.create_task(traffic.run())
        code, out, err = await finished(
            "baseline", "--duration", "3s", "--out", str(tmp_path), SPECDEC_VLLM_URL=vllm.url
        )
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert code == 2
    assert f"--out={tmp_path}: " in err
    assert yaml.safe_load(out)["baseline"]["demo"]["tpot"]["p50"] > 0
