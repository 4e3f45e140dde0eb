"""The machine's wall clock is set while the sidecar runs."""

import asyncio
import time

import pytest

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import MIXED, Traffic, TrafficOptions
from sidecar.engine.scrape import Poller
from sidecar.requests.plugin import install
from tests.app.app_tools import total
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


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_clock_that_is_set_leaves_no_number_wrong(jump, wall, socket_path, sidecar):
    def names(samples):
        return {name for name, _ in samples}

    async with FaultyVllm(SimulatorOptions(speed=20.0), plugin_socket=socket_path) as vllm, sidecar(vllm.url) as page:
        traffic = Traffic(vllm, TrafficOptions((MIXED,), max_requests=10**9, max_tokens=32))
        sending = asyncio.create_task(traffic.run())
        before = names(await page.until(lambda samples: total(samples, "specdec_requests_total") > 100, seconds=30))
        # Ticks that seem to be from before the engine's start are not compared with vLLM's counters.
        before.discard("specdec_request_coverage_ratio")

        wall.ahead = jump
        await page.until(lambda samples: before <= names(samples) and total(samples, "specdec_requests_total") > 200)
        traffic.stop()
        await sending
        # A clock set forward looks like a silent plug-in, whose split is withheld until its next tick.
        after = await page.until(lambda samples: total(samples, "specdec_requests_total") == traffic.completed)
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            assert total(after, f"specdec_{name}_total") == vllm.counter(f"spec_decode_num_{name}")
        # The eight in flight seem to have taken an hour more, or nothing; no other request does.
        assert 0 < total(after, "specdec_request_duration_seconds_sum") < 8.5 * HOUR
