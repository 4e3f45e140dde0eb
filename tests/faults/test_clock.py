"""The machine's wall clock is set while the sidecar runs."""

import asyncio
import time

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import MIXED, Phase, Traffic, TrafficOptions
from sidecar.engine.scrape import Poller
from sidecar.requests.plugin import install
from sidecar.settings import load_settings
from tests.demo.faulty_vllm import FaultyVllm

HOUR = 3600.0
REAL = time.time


class Wall:
    ahead = 0.0

    def __call__(self):
        return REAL() + self.ahead


@pytest.fixture
def wall(monkeypatch):
    """The clock of everything, the plug-in and the simulated vLLM included; it can be set."""
    clock = Wall()
    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setitem(Poller.__init__.__kwdefaults__, "wall_clock", clock)
    defaults = tuple(clock if one is REAL else one for one in install.__defaults__)
    monkeypatch.setattr(install, "__defaults__", defaults)
    return clock


async def sums(http, page):
    """The samples of a page, summed by name."""
    async with http.get(f"{page}/metrics") as response:
        text = await response.text()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_clock_that_is_set_leaves_no_number_wrong(jump, wall, tmp_path):
    socket = tmp_path / "plugin.sock"
    async with (
        FaultyVllm(SimulatorOptions(speed=20.0), plugin_socket=socket) as vllm,
        aiohttp.ClientSession() as http,
        asyncio.timeout(240),
    ):
        settings = {
            "SPECDEC_VLLM_URL": vllm.url,
            "SPECDEC_LISTEN": "127.0.0.1:0",
            "SPECDEC_PLUGIN__SOCKET": str(socket),
            "SPECDEC_SCRAPE_INTERVAL": "100ms",
            "SPECDEC_SCRAPE_CPU_SHARE": "1",
        }
        async with running(load_settings(None, settings)) as address:
            page = f"http://{address}"

            async def until(fits):
                while not fits(found := await sums(http, page)):
                    await asyncio.sleep(0.02)
                return found

            traffic = Traffic(vllm, TrafficOptions((Phase(3600, MIXED),), max_requests=10**9, max_tokens=32))
            sending = asyncio.create_task(traffic.run())
            before = await until(lambda found: found.get("specdec_requests_total", 0) > 100)

            wall.ahead = jump
            await until(lambda found: before.keys() <= found.keys() and found["specdec_requests_total"] > 200)
            traffic.stop()
            await sending
            # A clock set forward looks like a silent plug-in, whose split is withheld until its next tick.
            after = await until(lambda found: found.get("specdec_requests_total") == traffic.completed)
            for name in ("drafts", "draft_tokens", "accepted_tokens"):
                assert after[f"specdec_{name}_total"] == vllm.counter(f"spec_decode_num_{name}")
            # The eight in flight seem to have taken an hour more, or nothing; no other request does.
            assert 0 < after["specdec_request_duration_seconds_sum"] < 8.5 * HOUR
