"""The sidecar dies, hangs and comes back beside an engine that the plug-in observes.

All totals are right after it.
"""

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.traffic import MIXED, Traffic, TrafficOptions
from tests.app.app_tools import sidecar_settings
from tests.demo.http_vllm import HttpVllm
from tests.marks import slow
from tests.page import Page
from tests.waiting import START_SECONDS

BUCKETS = {0.0: "0", 0.3: "0-0.3", 0.7: "0.5-0.7", 1.0: "0.7-1"}


async def killed_under_load(processes, start, drafted):
    for _ in range(2):
        processes[-1].kill()
        await processes[-1].wait()
        await drafted(50)
        await start()
        await drafted(50)


async def suspended(processes, start, drafted):
    processes[-1].send_signal(signal.SIGSTOP)
    await drafted(2000)
    processes[-1].send_signal(signal.SIGCONT)


@pytest.mark.parametrize("fault", [killed_under_load, slow(suspended)])
async def test_totals_by_temperature_are_right_after(fault, program, socket_path, eventually):
    truth = Counter()

    def ended(request):
        label, lengths = BUCKETS[request.sampling_params.temperature], request.lengths
        truth["specdec_requests_total", label] += 1
        truth["specdec_drafts_total", label] += sum(lengths)
        truth["specdec_accepted_tokens_total", label] += sum(
            length * steps for length, steps in enumerate(lengths)
        )

    async with (
        HttpVllm(SimulatorOptions(speed=10), plugin_socket=socket_path) as vllm,
        AsyncExitStack() as stack,
    ):
        settings = sidecar_settings(vllm.url)
        processes = []

        async def start():
            processes.append(await stack.enter_async_context(program("run", **settings)))

        async def drafted(more):
            goal = vllm.counter("spec_decode_num_drafts") + more
            await eventually(lambda: vllm.counter("spec_decode_num_drafts") >= goal)

        async def until(read, expected):
            await Page(f"http://{settings['SPECDEC_LISTEN']}").until(
                read, expected, seconds=START_SECONDS, pause=0.05
            )

        await start()
        traffic = Traffic(vllm, TrafficOptions((MIXED,), max_requests=10**9), ended=ended)
        sending = asyncio.create_task(traffic.run())
        await until(lambda page: min(page.sum("specdec_drafts_total"), 100), 100)
        await fault(processes, start, drafted)
        reached = vllm.counter("spec_decode_num_drafts")
        # Else the engine might go idle before the sidecar is back, and not connect.
        await until(lambda page: min(page.sum("specdec_drafts_total"), reached), reached)
        traffic.stop()
        await sending
        assert traffic.failed == 0
        drafts = vllm.counter("spec_decode_num_drafts")
        names = ("specdec_drafts_total", "specdec_engine_drafts_total", "specdec_requests_total")
        await until(
            lambda page: [page.sum(name) for name in names], [drafts, drafts, traffic.completed]
        )
        await until(
            lambda page: {
                (name, label): page.sum(name, temperature=label) for name, label in truth
            },
            truth,
        )
        await until(lambda page: page.sum("specdec_request_coverage_ratio"), 1)
