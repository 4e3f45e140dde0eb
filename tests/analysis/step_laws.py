"""A simulated engine with a known step law: what its pages say, and the law's own answer."""

import itertools
from dataclasses import dataclass, replace
from random import Random

from sidecar.analysis.speed.fit import Block, fit
from sidecar.analysis.speed.steps import sum_steps
from sidecar.analysis.state import State
from sidecar.commands.baseline import BaselineRun
from sidecar.demo.metrics_page import MetricsPage
from sidecar.demo.scheduler import Request, RequestStatus, SamplingParams, Scheduler, SimulatorOptions
from sidecar.engine.exposition import PageReader
from sidecar.engine.snapshot import SnapshotReader
from sidecar.settings import Settings

BLOCK = 16
MODEL = "m"


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

    def __init__(self, law, *, tokens=3, budget=8192, at=1000.0, acceptance=0.75):
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
        self.page = MetricsPage(self.options, started=1.0)
        self.lines, self.snapshots = PageReader(), SnapshotReader()
        self.scheduler = Scheduler(self.options)
        self.random = Random(5)
        self.names = map(str, itertools.count())
        self.busy = self.tokens = 0.0

    def snapshot(self):
        body, _ = self.page.render()
        return self.snapshots.read(self.lines.read(body))

    def run(self, cell, seconds, polled, every):
        """Serves ``cell`` for simulated seconds; ``polled`` gets the time and each page."""
        self.scheduler._options = replace(self.options, prefix_hits=float(cell.is_warm))
        for place in range(cell.at_once):
            self._send(cell, (place + 1) / cell.at_once)
        end, due = self.at + seconds, self.at + every
        while self.at < end:
            self._step(cell)
            if self.at >= due:
                due += every
                polled(self.at, self.snapshot())
        left = [*self.scheduler.requests]
        self.scheduler.finish_requests(left, RequestStatus.FINISHED_ABORTED)
        self.page.record_load(self.scheduler)
        self.at += 0.5
        polled(self.at, self.snapshot())

    def _step(self, cell):
        scheduler = self.scheduler
        scheduler.now = self.at
        output = scheduler.schedule()
        seconds = scheduler.duration(output)
        self.at += seconds
        self.busy += seconds
        scheduler.now = self.at
        (report,) = scheduler.update_from_output(output, scheduler.execute(output)).values()
        self.page.record_step(report, scheduler)
        self.tokens += report.generation_tokens
        for _ in report.finished:
            self._send(cell)

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
