"""Pods for scenes: what Prometheus would have scraped from a sidecar beside a vLLM with a planned traffic.

From vLLM's page on everything is the sidecar's own code: its parser, its analysis, its metrics.
"""

import json
from threading import Lock

from sidecar.analysis.report import Distribution, OwnReport
from sidecar.analysis.state import State
from sidecar.engine.exposition import PageReader
from sidecar.engine.names import wanted
from sidecar.engine.snapshot import SnapshotReader
from sidecar.errors import TimedOut
from sidecar.export.declaration import Shown
from sidecar.export.metrics import METRICS
from sidecar.settings import load_settings
from tests.alerts.series import named, values_of
from tests.alerts.vllm_pages import EPOCH, PLAIN_STEP, Plan, Temperature, Vllm, steady

JOB = "vllm"
RUNBOOKS = "https://runbooks.example"
DASHBOARDS = "https://grafana.example"
SCRAPE = 60  # seconds


class Pod:
    """One vLLM and its sidecar; each method plans something and returns the pod, so that a scene reads like a list."""

    def __init__(self, instance, *, model="m", namespace="prod", minutes=300, start=0, poll=30, **thresholds):
        """It lives for ``minutes`` from minute ``start`` on; the sidecar polls every ``poll`` seconds."""
        self.minutes, self.start, self.poll = minutes, start, poll
        self.own = {"namespace": namespace, "job": JOB, "instance": f"{instance}:9911"}
        self.model = model
        self.vllm = Vllm(model)
        self.environment = {f"SPECDEC_THRESHOLDS__{name.upper()}": str(value) for name, value in thresholds.items()} | {
            "SPECDEC_ALERTING__RUNBOOKS": RUNBOOKS,
            "SPECDEC_ALERTING__DASHBOARDS": DASHBOARDS,
        }
        self.fails = lambda _: False  # by poll number
        self.restarts = set()  # minutes
        self.gaps = []  # (from, to) minutes in which nothing is there to scrape
        self.left_out = ()  # what this sidecar does not export: parts of names
        self.added = {}
        self._series = None
        self._building = Lock()  # mutations share the pods

    # The traffic.

    def drafting(self, drafts, acceptance, *, engine="0", then=None, minutes=None, requests=10, running=0, k=3):
        """``drafts`` per second; ``then`` is (acceptance, drafts per second or None) after ``minutes``.

        ``requests`` begin per minute, ``running`` run at any time; ``k`` draft tokens a draft, or two: then the second.
        """
        phases = [(minutes or self.minutes, drafts, acceptance)]
        if then is not None:
            phases.append((self.minutes, then[1], then[0]))
        return self.drafting_in(phases, k, engine, requests, running)

    def drafting_in(self, phases, k=3, engine="0", requests=10, running=0):
        """Phases of (minutes, drafts per second, acceptance)."""
        ks = k if isinstance(k, tuple) else (k,) * len(phases)
        made = self.vllm.engine(engine)
        made.drafts = Plan([(minutes, drafts) for minutes, drafts, _ in phases])
        made.acceptance = Plan([(minutes, acceptance) for minutes, _, acceptance in phases])
        made.k = Plan([(minutes, k) for (minutes, *_), k in zip(phases, ks, strict=True)])
        made.requests, made.running = steady(requests), steady(running)
        return self

    def bucket(self, temperature, drafts, acceptance, requests=10, *, then=None):
        """One temperature's work, with the plug-in: ``drafts`` per second, ``requests`` finished per minute.

        ``then`` is (minutes, acceptance, drafts per second): what follows after so many minutes. What the engine drafts
        is all temperatures together.
        """
        phases = [(self.minutes, drafts, acceptance)]
        if then is not None:
            phases = [(then[0], drafts, acceptance), (self.minutes, then[2], then[1])]
        self.vllm.temperatures[temperature] = Temperature(phases, requests)
        edges = sorted({sum(m for m, *_ in one.phases[:1]) for one in self.vllm.temperatures.values()})
        joint = []
        for begun, end in zip((0, *edges), (*edges, self.minutes), strict=True):
            at = [(Plan([(m, (d, a)) for m, d, a in one.phases]).at(begun)) for one in self.vllm.temperatures.values()]
            total = sum(d for d, _ in at)
            joint.append((end - begun, total, sum(d * a for d, a in at) / total if total else 0))
        return self.drafting_in(joint, requests=sum(one.requests for one in self.vllm.temperatures.values()))

    def generating(self, tokens, *, then=None, minutes=None, engine="0"):
        """Tokens per second without drafts."""
        phases = [(minutes or self.minutes, tokens)] + ([(self.minutes, then)] if then is not None else [])
        self.vllm.engine(engine).plain_tokens = Plan(phases)
        return self

    def p10(self, value, minutes=None):
        """Every request accepts this part."""
        self.vllm.rates = Plan([(minutes or self.minutes, value), (self.minutes, None)])
        return self

    def tpot(self, p50, p99, *, then=None, minutes=None, engine="0"):
        phases = [(minutes or self.minutes, (p50, p99))] + ([(self.minutes, then)] if then else [])
        self.vllm.engine(engine).tpot = Plan(phases)
        return self

    def baseline(self, p50, p99):
        self.environment["SPECDEC_BASELINE"] = json.dumps({self.model: {"tpot": {"p50": p50, "p99": p99}}})
        return self

    def cache(self, peak, *waiting, capacity=None, engine="0"):
        """The KV cache's usage, requests waiting, and those of them that wait for capacity."""
        made = self.vllm.engine(engine)
        made.peak, made.waiting = steady(peak), Plan(list(waiting))
        made.for_capacity = None if capacity is None else Plan(capacity)
        return self

    def timed(self, speedup, *, engine="0", reference=1.0):
        """A baseline, and steps that make speculation so fast; ``reference``: the baseline's time over plain pods'."""
        made = self.vllm.engine(engine)
        curve = {
            "running": [1, 64],
            "seconds": [PLAIN_STEP * reference] * 2,
            "errors": [1e-5] * 2,
            "prompt_seconds": 0.0,
        }
        self.environment["SPECDEC_PLAIN_STEPS"] = json.dumps({self.model: curve})
        lengths = [(m, 1 + made.k.at(0) * a) for m, a in made.acceptance.phases]
        made.step_seconds = Plan([(m, PLAIN_STEP * length / speedup) for m, length in lengths])
        return self

    def speculating(self, speculation):
        self.vllm.speculation = speculation
        return self

    # What goes wrong.

    def failing(self, fails):
        """``fails`` says of a poll's number whether it fails."""
        self.fails = fails
        return self

    def restarting(self, *minutes):
        """vLLM and its plug-in start anew at these minutes."""
        self.restarts = set(minutes)
        return self

    def away(self, start, end):
        """Neither vLLM nor its sidecar are there between two minutes; the sidecar starts anew after it."""
        self.gaps.append((start, end))
        return self

    def without(self, *names):
        """A sidecar that does not export the metrics with these parts of names."""
        self.left_out = names
        return self

    # What only Prometheus or the sidecar itself knows.

    def plain(self, metric, values, **labels):
        self.added[named(metric, **self.own, **labels)] = values
        return self

    @property
    def series(self):
        """Every series with its values, one a minute, as promtool reads them."""
        with self._building:
            if self._series is None:
                self._series = {
                    one: values_of(samples, self.start)
                    for one, samples in self._scraped().items()
                    if not any(name in one for name in self.left_out)
                }
        return self._series | self.added

    def _scraped(self):
        """By series, its values by minute."""
        found = {}
        for minute, sidecar in self.scrapes():
            for one, value in sidecar.samples(minute):
                found.setdefault(named(one[0], **self.own, **dict(one[1])), {})[minute] = value
        return found

    def scrapes(self):
        """The sidecar after each minute's poll, counted from the pod's start."""
        self.vllm.lives = 0
        self.vllm.restart()
        sidecar = None
        for number in range(self.minutes * 60 // self.poll):
            minute = number * self.poll / 60
            if any(start <= minute < end for start, end in self.gaps):
                sidecar = None
                continue
            sidecar = sidecar or Sidecar(self, minute)
            if minute in self.restarts:
                self.vllm.restart()
            sidecar.poll(number, minute)
            if number * self.poll % SCRAPE == 0:
                yield round(minute), sidecar


class Sidecar:
    """The sidecar's own code, from the page's text to samples."""

    def __init__(self, pod, minute):
        self._pod = pod
        self.settings = load_settings(None, pod.environment)
        self._state = State(self.settings, EPOCH - 120 if minute == 0 else EPOCH + 60 * minute)
        self._pages, self._snapshots = PageReader(wanted(), self.settings.limits), SnapshotReader()

    def poll(self, number, minute):
        pod, at = self._pod, EPOCH + 60 * (self._pod.start + minute)
        if number:
            pod.vllm.grow((minute * 60 - pod.poll) / 60, pod.poll)
        else:
            pod.vllm.grow(0, 0)
        if pod.vllm.has_plugin:
            pod.vllm.tell(self._state.plugin, at, minute, pod.poll)
        if not pod.vllm.engines:
            return
        if pod.fails(number):
            self._state.failed(at, TimedOut("the scene wants it"))
            return
        page = self._snapshots.read(self._pages.read(pod.vllm.page(minute)))
        self._state.scraped(at, 0.005, pod.poll, page)

    def report(self, minute):
        return self._state.report(EPOCH + 60 * (self._pod.start + minute), OwnReport())

    def samples(self, minute):
        """Every sample as ((name, labels), value)."""
        shown = Shown(self.report(minute), self.settings)
        for metric in METRICS:
            for labels, value in metric.samples(shown):
                if isinstance(value, Distribution):
                    continue  # no rule reads one
                yield (metric.name, tuple(zip(metric.labels, labels, strict=True))), float(value)
