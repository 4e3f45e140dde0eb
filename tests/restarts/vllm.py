"""A simulated vLLM as a process of its own, which a test can kill.

Run it as ``python -m tests.restarts.vllm <Options as JSON>``.

Its engines are the demo's, observed by the real plug-in, on one page. GET /truth answers what its
schedulers counted beneath the plug-in. POST /traffic, /drain, /replace or /leave acts on it; the
last two, on its last engine.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import cycle
from types import SimpleNamespace

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from sidecar.requests.plugin import GAUGE, install
from specdec_tools.demo.metrics_page import MetricsPage
from specdec_tools.demo.scheduler import Scheduler, SimulatorOptions
from specdec_tools.demo.server import VERSION, Engine, SimulatedVllm
from specdec_tools.demo.traffic import Traffic, TrafficOptions

# seconds: so slow that a report of many rows, a few to a step, takes longer than a scrape interval
STEP = 0.04


@dataclass(frozen=True)
class Options:
    port: int
    socket: str
    engines: int = 1
    # in turn, as are the adapters
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
    adapters: tuple[str, ...] = ()
    concurrency: int = 24  # requests in flight, of all engines
    # several API servers do not: no process_start_time_seconds, and no _created of counters
    shows_start: bool = True
    # a replaced engine's counters go on, since they belong to the API server
    keeps_page: bool = False


class Counting(Scheduler):
    """Counts drafts in ``truth``, by vLLM's rule."""

    truth: Counter

    def update_from_output(self, scheduler_output, model_runner_output):
        for request_id in scheduler_output.scheduled_spec_decode_tokens:
            if (
                request := self.requests.get(request_id)
            ) is not None:  # None: aborted while the step ran
                self.truth["engine", self._options.engine] += 1
                self.truth["temperature", str(request.sampling_params.temperature)] += 1
                self.truth[
                    "group", request.lora_request.lora_name if request.lora_request else "none"
                ] += 1
        return super().update_from_output(scheduler_output, model_runner_output)


class Vllm(SimulatedVllm):
    """One engine; its own HTTP server is not used."""

    def __init__(self, options, engine, truth, server):
        self._plugin_socket, self._truth, self._server = options.socket, truth, server
        simulated = {
            "step_seconds": STEP,
            "step_seconds_per_request": 0.0,
            "prefill_seconds_per_token": 0.0,
        }
        super().__init__(SimulatorOptions(engine=engine, max_num_seqs=64, **simulated))

    def begin(self):
        """As an engine core that begins: the server, and so its id, is the same."""
        scheduler = type("Scheduler", (Counting,), {"truth": self._truth})
        install(scheduler, VERSION, self._plugin_socket, self._server)
        self.page = MetricsPage(self.options, started=time.time(), server=self._server)
        self.engine = Engine(scheduler(self.options), self.page, self.options.speed)


class Mixed(Traffic):
    """Each temperature in turn, and each adapter."""

    def __init__(self, vllm, options):
        concurrency = options.concurrency // options.engines
        super().__init__(
            vllm,
            TrafficOptions(
                concurrency=concurrency, max_requests=10**9, min_tokens=16, max_tokens=48
            ),
        )
        self._temperatures = cycle(options.temperatures)
        self._adapters = cycle(options.adapters or (None,))

    def _request(self, mix):
        request, adapter = super()._request({next(self._temperatures): 1}), next(self._adapters)
        request.lora_request = SimpleNamespace(lora_name=adapter) if adapter else None
        return request


class Server:
    """Runs until it is killed."""

    def __init__(self, options):
        self.options, self.truth, self.sending = options, Counter(), {}
        server = os.urandom(8).hex()
        self.engines = [
            Vllm(options, str(number), self.truth, server) for number in range(options.engines)
        ]

    async def run(self):
        app = web.Application()
        app.add_routes([web.get(path, self.metrics) for path in ("/metrics", "/metrics/")])
        app.add_routes([web.get("/truth", self.counted), web.post("/{action}", self.act)])
        for vllm in self.engines:
            vllm.engine.start()
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.options.port).start()
        await asyncio.Event().wait()

    def collect(self):
        """The engines' families as those of one page."""
        families = {}
        for vllm in self.engines:
            for family in vllm.page.registry.collect():
                known = families.setdefault(family.name, family)
                is_of_server = family.name in {"process_start_time_seconds", GAUGE}
                if known is not family and not is_of_server:
                    known.samples += family.samples
        if not self.options.shows_start:
            del families["process_start_time_seconds"]
            for family in families.values():
                family.samples = [
                    sample for sample in family.samples if not sample.name.endswith("_created")
                ]
        return families.values()

    async def metrics(self, _request):
        return web.Response(
            body=generate_latest(self), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def counted(self, _request):
        return web.json_response([[*key, count] for key, count in self.truth.items()])

    async def act(self, request):
        await getattr(self, request.match_info["action"])()
        return web.Response()

    async def traffic(self):
        senders = [Mixed(vllm, self.options) for vllm in self.engines]
        self.sending |= {sender: asyncio.create_task(sender.run()) for sender in senders}

    async def drain(self):
        """Ends the traffic, and returns once nothing is in flight."""
        for sender in self.sending:
            sender.stop()
        await asyncio.gather(*self.sending.values())
        self.sending.clear()

    async def leave(self):
        await self.engines.pop().engine.stop()

    async def replace(self):
        vllm, page = self.engines[-1], self.engines[-1].page
        await vllm.engine.stop()
        vllm.begin()
        if self.options.keeps_page:
            vllm.page, vllm.engine = page, Engine(vllm.engine.scheduler, page, vllm.options.speed)
        vllm.engine.start()


def command(options):
    return (sys.executable, "-m", "tests.restarts.vllm", json.dumps(asdict(options)))


if __name__ == "__main__":
    asyncio.run(Server(Options(**json.loads(sys.argv[1]))).run())
