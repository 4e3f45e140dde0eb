"""The sidecar dies, hangs and comes back beside an engine that the plug-in observes: all totals are right after it."""

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import MIXED, Traffic, TrafficOptions
from tests.debian_servers import free_port
from tests.demo.faulty_vllm import FaultyVllm

BUCKETS = {0.0: "0", 0.3: "0-0.3", 0.7: "0.5-0.7", 1.0: "0.7-1"}


class Sidecar(AsyncExitStack):
    """The program, as often as it is started."""

    def __init__(self, program, vllm_url):
        super().__init__()
        self.port = free_port()
        self._program = program
        self._given = {
            "SPECDEC_VLLM_URL": vllm_url,
            "SPECDEC_LISTEN": f"127.0.0.1:{self.port}",
            "SPECDEC_SCRAPE_INTERVAL": "100ms",
            "SPECDEC_SCRAPE_CPU_SHARE": "1",
        }

    async def start(self):
        self.process = await self.enter_async_context(self._program("run", **self._given))

    async def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        await self.process.wait()

    async def page(self):
        """Its samples, {(name, labels' values): value}; empty while it does not answer."""
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"http://127.0.0.1:{self.port}/metrics") as response,
            ):
                text = await response.text()
        except aiohttp.ClientError:
            return {}
        samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
        return {(one.name, *sorted(one.labels.items())): one.value for one in samples}


def summed(page, name, **labels):
    return sum(
        value for (sample, *pairs), value in page.items() if sample == name and set(labels.items()) <= set(pairs)
    )


async def killed_under_load(sidecar, drafted):
    for _ in range(3):
        await sidecar.end()
        await drafted(50)
        await sidecar.start()
        await drafted(50)


async def suspended(sidecar, drafted):
    sidecar.process.send_signal(signal.SIGSTOP)
    await drafted(2000)
    sidecar.process.send_signal(signal.SIGCONT)


async def terminated(sidecar, drafted):
    await sidecar.end(signal.SIGTERM)
    await drafted(50)
    await sidecar.start()


@pytest.mark.parametrize("fault", [killed_under_load, suspended, terminated])
async def test_totals_are_right_after(fault, program, socket_path, eventually):
    truth = Counter()

    def ended(request):
        label = BUCKETS[request.sampling_params.temperature]
        truth[label, "requests"] += 1
        truth[label, "drafts"] += sum(request.lengths)
        truth[label, "accepted"] += sum(length * steps for length, steps in enumerate(request.lengths))

    async with (
        FaultyVllm(SimulatorOptions(speed=10), plugin_socket=socket_path) as vllm,
        Sidecar(program, vllm.url) as sidecar,
    ):

        async def drafted(more):
            wanted = vllm.counter("spec_decode_num_drafts") + more
            await eventually(lambda: vllm.counter("spec_decode_num_drafts") >= wanted)

        async def until(holds):
            while not holds(page := await sidecar.page()):
                await asyncio.sleep(0.05)
            return page

        await sidecar.start()
        traffic = Traffic(vllm, TrafficOptions((MIXED,), max_requests=10**9), ended=ended)
        sending = asyncio.create_task(traffic.run())
        await until(lambda page: summed(page, "specdec_drafts_total") > 100)
        await fault(sidecar, drafted)
        reached = vllm.counter("spec_decode_num_drafts")
        # Else the engine might go idle before it is heard again, and not connect.
        await until(lambda page: summed(page, "specdec_drafts_total") >= reached)
        traffic.stop()
        await sending
        assert traffic.failed == 0
        drafts = vllm.counter("spec_decode_num_drafts")
        page = await until(
            lambda page: (
                summed(page, "specdec_drafts_total") == summed(page, "specdec_engine_drafts_total") == drafts
                and summed(page, "specdec_requests_total") == traffic.completed
            )
        )
        for label in BUCKETS.values():
            assert summed(page, "specdec_requests_total", temperature=label) == truth[label, "requests"]
            assert summed(page, "specdec_drafts_total", temperature=label) == truth[label, "drafts"]
            assert summed(page, "specdec_accepted_tokens_total", temperature=label) == truth[label, "accepted"]
        coverage = ("specdec_request_coverage_ratio", ("engine", "0"), ("model_name", "demo"))
        assert (await until(lambda page: coverage in page))[coverage] == 1
