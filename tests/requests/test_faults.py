"""The sidecar dies, hangs and comes back beside an engine that the plug-in observes: all totals are right after it."""

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import MIXED, Traffic, TrafficOptions
from tests.app.app_tools import sidecar_settings
from tests.demo.http_vllm import HttpVllm
from tests.page import Page
from tests.waiting import START_SECONDS

BUCKETS = {0.0: "0", 0.3: "0-0.3", 0.7: "0.5-0.7", 1.0: "0.7-1"}
TOTALS = {"requests": "requests", "drafts": "drafts", "accepted": "accepted_tokens"}


class Sidecar(AsyncExitStack):
    """The program, as often as it is started."""

    def __init__(self, program, settings):
        super().__init__()
        self._program, self._settings = program, settings

    async def start(self):
        self.process = await self.enter_async_context(self._program("run", **self._settings))

    async def kill(self):
        self.process.kill()
        await self.process.wait()


async def killed_under_load(sidecar, drafted):
    for _ in range(3):
        await sidecar.kill()
        await drafted(50)
        await sidecar.start()
        await drafted(50)


async def suspended(sidecar, drafted):
    sidecar.process.send_signal(signal.SIGSTOP)
    await drafted(2000)
    sidecar.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("fault", [killed_under_load, suspended])
async def test_totals_by_temperature_are_right_after(fault, program, socket_path, eventually):
    truth = Counter()

    def ended(request):
        label = BUCKETS[request.sampling_params.temperature]
        truth[label, "requests"] += 1
        truth[label, "drafts"] += sum(request.lengths)
        truth[label, "accepted"] += sum(length * steps for length, steps in enumerate(request.lengths))

    async with HttpVllm(SimulatorOptions(speed=10), plugin_socket=socket_path) as vllm, AsyncExitStack() as stack:
        settings = sidecar_settings(vllm.url)
        sidecar = await stack.enter_async_context(Sidecar(program, settings))

        async def drafted(more):
            goal = vllm.counter("spec_decode_num_drafts") + more
            await eventually(lambda: vllm.counter("spec_decode_num_drafts") >= goal)

        async def until(read, expected):
            await Page(f"http://{settings['SPECDEC_LISTEN']}").until(read, expected, seconds=START_SECONDS, pause=0.05)

        await sidecar.start()
        traffic = Traffic(vllm, TrafficOptions((MIXED,), max_requests=10**9), ended=ended)
        sending = asyncio.create_task(traffic.run())
        await until(lambda page: min(page.sum("specdec_drafts_total"), 100), 100)
        await fault(sidecar, drafted)
        reached = vllm.counter("spec_decode_num_drafts")
        # Else the engine might go idle before the sidecar is back, and not connect.
        await until(lambda page: min(page.sum("specdec_drafts_total"), reached), reached)
        traffic.stop()
        await sending
        assert traffic.failed == 0
        drafts = vllm.counter("spec_decode_num_drafts")
        names = ("specdec_drafts_total", "specdec_engine_drafts_total", "specdec_requests_total")
        await until(lambda page: [page.sum(name) for name in names], [drafts, drafts, traffic.completed])

        def by_temperature(page):
            return {
                (label, key): page.sum(f"specdec_{name}_total", temperature=label)
                for label in BUCKETS.values()
                for key, name in TOTALS.items()
            }

        await until(by_temperature, truth)
        await until(lambda page: page.sum("specdec_request_coverage_ratio"), 1)
