"""A simulated engine with a known step law: what its pages say, and the law's own answer."""

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace
from random import Random

from sidecar.analysis.state import State
from sidecar.engine.exposition import PageReader
from sidecar.engine.names import wanted
from sidecar.engine.snapshot import SnapshotReader
from sidecar.requests.keys import CellKey
from sidecar.requests.messages import (
    Hello,
    HelloState,
    ReportEnd,
    ReportPart,
    StepKey,
    StepTally,
)
from sidecar.settings import Settings
from sidecar.settings.groups import Limits
from specdec_tools.demo.metrics_page import MetricsPage
from specdec_tools.demo.scheduler import (
    Request,
    RequestStatus,
    SamplingParams,
    Scheduler,
    SimulatorOptions,
)
from specdec_tools.plain.measured import BaselineRun, Slot
from tests.cells import NOTHING, added, numbers

MODEL = "m"
REQUESTS = 120  # so many give a time per token to within a percent


@dataclass(frozen=True)
class Cell:
    """Traffic: requests at once, prompt and output tokens, and whether prompts are in the cache."""

    at_once: int
    prompt: int
    output: int
    is_warm: bool

    @property
    def name(self):
        return f"{self.at_once}x{self.prompt}+{self.output}{'w' if self.is_warm else 'c'}"


class SimulatedServer:
    """An engine in simulated time: ``run`` serves a cell's closed-loop traffic, and polls."""

    def __init__(
        self, law, *, tokens=3, budget=8192, at=1000.0, acceptance=0.75, noise=0.0, has_page=True
    ):
        self.options = SimulatorOptions(
            model_name=MODEL,
            num_speculative_tokens=tokens,
            cold_acceptance=acceptance,
            hot_acceptance=acceptance,
            prefix_hits=0.0,
            cached_share=1.0,
            max_num_seqs=1024,
            max_num_batched_tokens=budget,
            num_gpu_blocks=10**7,
            law=law,
        )
        self.at = at
        self.has_page = has_page
        self.page = MetricsPage(self.options, started=1.0)
        self.lines = PageReader(wanted(), Limits())
        self.snapshots = SnapshotReader()
        self.scheduler = Scheduler(self.options)
        self.random = Random(5)
        self.names = map(str, itertools.count())
        self.busy = self.tokens = self.expected = 0.0
        self.finished = 0
        self.noise, self.speed = noise, 1.0
        self.counted = defaultdict(StepTally)  # as the plug-in counts steps
        self.cell = NOTHING  # as it counts drafts
        self.generated = 0
        self.steps = 0
        self.sampled = 0.0  # mean context, as it samples it once a report; 0: not yet

    def snapshot(self):
        body, _ = self.page.render()
        return self.snapshots.read(self.lines.read(body))

    def serve(self, cell, requests, begun=lambda: None, polled=lambda: None, polls=30):
        """Serves ``cell`` until half of the requests have ended, then for twice as long.

        ``begun`` is called in between, and ``polled`` ``polls`` times after it. ``expected`` is how
        long the second part takes; ``busy`` and ``tokens`` count only that.
        """
        self.scheduler._options = replace(self.options, prefix_hits=float(cell.is_warm))
        begin = self.at
        for place in range(cell.at_once):
            self._send(cell, (place + 1) / cell.at_once)
        self._until(cell, requests // 2 + cell.at_once // 2)
        # Half of the requests' first outputs are cut short.
        self.expected = 2 * (self.at - begin)
        self.busy = self.tokens = 0.0
        begun()
        for _ in range(polls):
            end = self.at + self.expected / polls
            while self.at < end:
                self._step(cell)
            polled()

    def _until(self, cell, finished):
        end = self.finished + finished
        while self.finished < end:
            self._step(cell)

    def stop(self):
        """Ends all requests, as if their clients had left."""
        left = [*self.scheduler.requests]
        self.scheduler.finish_requests(left, RequestStatus.FINISHED_ABORTED)
        self.page.record_load(self.scheduler)
        self.at += 0.5

    def report(self):
        """What the plug-in would send. It samples contexts at the next step with any."""
        self.sampled = 0.0
        end = ReportEnd(
            at=self.at,
            steps=self.steps,
            generation_tokens=self.generated,
            running=0,
            waiting=0,
            lost=0,
            endings={},
        )
        return ReportPart(
            cells=((CellKey(0, 0, 0, None), self.cell),),
            steps=tuple(self.counted.items()),
            end=end,
        )

    def hello(self):
        """How the plug-in would introduce itself."""
        return Hello(
            plugin="0.1.0",
            vllm="0.32.0",
            model=MODEL,
            engine=0,
            start="1",
            started=1.0,  # with the page
            state=HelloState.OBSERVING,
        )

    def _step(self, cell):
        scheduler = self.scheduler
        scheduler.now = self.at
        output = scheduler.schedule()
        work = scheduler._work(output)
        jitter = 1 + self.random.gauss(0, self.noise) if self.noise else 1.0
        seconds = self.options.law.seconds(work) * self.speed * max(jitter, 0.2)
        self.at += seconds
        self.busy += seconds
        scheduler.now = self.at
        (report,) = scheduler.update_from_output(output, scheduler.execute(output)).values()
        self.tokens += report.generation_tokens
        if self.has_page:
            self.page.record_step(report, scheduler)
            self._count(work, seconds, report)
        for _ in report.finished:
            self.finished += 1
            self._send(cell)

    def _count(self, work, seconds, report):
        self.steps += 1
        self.generated += report.generation_tokens
        if (drafted := report.speculation) is not None:
            grown = (drafted.num_drafts, drafted.num_draft_tokens, drafted.num_accepted_tokens)
            self.cell = added(self.cell, numbers(0, *grown))
        if not work.decodes:
            key = StepKey(0, 0, work.prefill_tokens > 64)
            self.counted[key] += StepTally(
                steps=1, seconds=seconds, prefill_tokens=work.prefill_tokens
            )
            return
        self.sampled = self.sampled or work.context_tokens / work.decodes
        context = max(self.sampled, 1.0)
        exponent = max((round(context) - 1).bit_length() + 1, 0) // 2
        power = 2 ** (work.decodes - 1).bit_length()
        decodes = work.decodes if work.decodes <= 16 else power
        key = StepKey(decodes, exponent, work.prefill_tokens > 64)
        first = len(report.first_token_seconds)
        self.counted[key] += StepTally(
            steps=1,
            seconds=seconds,
            decodes=work.decodes,
            request_seconds=seconds * work.decodes,
            tokens=report.generation_tokens - first,
            prefill_tokens=work.prefill_tokens,
            context_tokens=round(context * work.decodes),
        )

    def _send(self, cell, part=1.0):
        """With lengths that differ by a fifth, as real ones do."""
        spread = self.random.uniform(0.8, 1.2)
        request = Request(
            request_id=next(self.names),
            sampling_params=SamplingParams(0.0),
            num_prompt_tokens=max(round(cell.prompt * spread), 1),
            max_tokens=max(round(cell.output * part * self.random.uniform(0.8, 1.2)), 2),
            arrival_time=self.at,
            random=Random(self.random.getrandbits(64)),
        )
        self.scheduler.now = self.at
        self.scheduler.add_request(request)


def truth(law, cell, budget=8192, requests=None):
    """The law's own answer: the wall time of a token without speculation / with it."""
    plain, actual = (
        seconds_per_token(law, cell, tokens, budget, requests or REQUESTS) for tokens in (0, 3)
    )
    return plain / actual


def seconds_per_token(law, cell, tokens, budget=8192, requests=REQUESTS):
    """Over so many requests, and twice as many as there are at once."""
    server = SimulatedServer(law, tokens=tokens, budget=budget, has_page=False)
    server.serve(cell, max(requests, 2 * cell.at_once))
    return server.busy / server.tokens


def baseline(law, loads, prompts, *, output=128, requests=1, budget=8192, **server):
    """What ``baseline`` measures on the engine without speculation.

    In each slot it answers ``requests`` times as many as there are at once, and six at least.
    """
    engine = SimulatedServer(law, tokens=0, budget=budget, **server)
    measured = BaselineRun()
    measured.receive(1, engine.hello())

    def polled():
        measured.receive(1, engine.report())
        measured.scraped(engine.at, 0.01, 1.0, engine.snapshot())

    for number in range(3):
        for prompt in prompts:
            for load in loads:
                for is_warm in (False, True) if prompt in (prompts[0], prompts[-1]) else (False,):
                    cell = Cell(load, prompt, output * (1 + is_warm), is_warm)

                    def begun(number=number, load=load):
                        polled()
                        measured.begin(Slot(number, load))

                    engine.serve(cell, max(requests * load, 6), begun, polled, polls=6)
                    measured.end()
                    engine.stop()
    return measured.curves().get(MODEL)


def shown(law, cell, curve, *, budget=8192, requests=REQUESTS):
    """The model's report after the cell's traffic on the speculating engine, and that engine."""
    engine = SimulatedServer(law, budget=budget)
    states = []

    def polled():
        (state,) = states
        state.plugin.receive(1, engine.report())
        state.scraped(engine.at, 0.01, 1.0, engine.snapshot())

    def begun():
        window = {"latency_window": engine.expected, "plain_steps": {MODEL: curve}}
        states.append(State(Settings().model_copy(update=window), engine.at))
        states[0].plugin.receive(1, engine.hello())
        polled()

    engine.serve(cell, max(requests, 2 * cell.at_once), begun, polled)
    (model,) = states[0].report(engine.at).models
    return model, engine.busy / engine.tokens
