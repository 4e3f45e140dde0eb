"""Pods for scenes: what Prometheus would have scraped from a sidecar beside a vLLM with a planned traffic.

From vLLM's page on everything is the sidecar's own code: its parser, its analysis, its metrics.
"""

import json
import re
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
from tests.alerts.series import sampled, values_of
from tests.alerts.vllm_pages import EPOCH, PLAIN_STEP, Temperature, Vllm, plan, steady

JOB = "vllm"
RUNBOOKS = "https://runbooks.example"
DASHBOARDS = "https://grafana.example"
SCRAPE = 60  # seconds
POD = "vllm-7d9c4bf6c5-x2x9z"  # of a Deployment


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
        self.left_out = None  # what this sidecar does not export: a pattern of names
        self.added = {}  # by metric and labels, phases and whether they are a counter's
        self._series = {}  # by seconds between scrapes
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
        made.drafts = plan(*[(minutes, drafts) for minutes, drafts, _ in phases])
        made.acceptance = plan(*[(minutes, acceptance) for minutes, _, acceptance in phases])
        made.k = plan(*[(minutes, k) for (minutes, *_), k in zip(phases, ks, strict=True)])
        made.requests, made.running = steady(requests), steady(running)
        return self

    def bucket(self, temperature, drafts, acceptance, requests=10, *, then=None):
        """One temperature's work, with the plug-in: ``drafts`` per second, ``requests`` finished per minute.

        ``then`` is (minutes, acceptance, drafts per second): what follows after so many minutes. What the engine drafts
        is all temperatures together.
        """
        minutes, then_acceptance, then_drafts = then or (self.minutes, acceptance, drafts)
        self.vllm.temperatures[temperature] = Temperature(
            plan((minutes, drafts), (0, then_drafts)), plan((minutes, acceptance), (0, then_acceptance)), requests
        )
        made = self.vllm.engine()
        made.drafts, made.acceptance = self.vllm.drafts_of_all, self.vllm.acceptance_of_all
        made.requests = steady(sum(one.requests for one in self.vllm.temperatures.values()))
        return self

    def generating(self, tokens, *, then=None, minutes=None, engine="0"):
        """Tokens per second without drafts."""
        later = tokens if then is None else then
        self.vllm.engine(engine).plain_tokens = plan((minutes or self.minutes, tokens), (0, later))
        return self

    def p10(self, value, minutes=None):
        """Every request accepts this part."""
        self.vllm.rates = plan((minutes or self.minutes, value), (0, None))
        return self

    def tpot(self, p50, p99, *, then=None, minutes=None, engine="0"):
        self.vllm.engine(engine).tpot = ((minutes or self.minutes, (p50, p99)), (0, then or (p50, p99)))
        return self

    def baseline(self, p50, p99):
        self.environment["SPECDEC_BASELINE"] = json.dumps({self.model: {"tpot": {"p50": p50, "p99": p99}}})
        return self

    def cache(self, peak, *waiting, capacity=None, engine="0"):
        """The KV cache's usage, requests waiting, and those of them that wait for capacity."""
        made = self.vllm.engine(engine)
        made.peak, made.waiting = steady(peak), plan(*waiting)
        made.for_capacity = None if capacity is None else steady(capacity)
        return self

    def timed(self, speedup, *, engine="0", reference=1.0, then=None):
        """A baseline, and steps that make speculation so fast; ``reference``: the baseline's time over plain pods'.

        ``then``: how fast after 20 minutes.
        """
        self.vllm.engine(engine).speedup = plan((20, speedup), (0, then or speedup))
        curve = {
            "running": [1, 64],
            "seconds": [PLAIN_STEP * reference] * 2,
            "errors": [1e-5] * 2,
            "prompt_seconds": 0.0,
        }
        self.environment["SPECDEC_PLAIN_STEPS"] = json.dumps({self.model: curve})
        return self

    def speculating(self, speculation):
        self.vllm.speculation = speculation
        return self

    def in_kubernetes(self):
        """Scraped by a monitor that adds the Pod's name."""
        self.own["pod"] = POD
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

    def without(self, names):
        """A sidecar that does not export the metrics whose names match."""
        self.left_out = names
        return self

    # What only Prometheus or the sidecar itself knows.

    def plain(self, metric, *phases, grows=False, **labels):
        """Phases of (minutes, value); ``grows``: of a counter, by minute."""
        self.added[metric, tuple(labels.items())] = (phases, grows)
        return self

    def series(self, seconds):
        """By metric and labels, without the scrape's own: the values, one every ``seconds``, as promtool reads them."""
        with self._building:
            if seconds not in self._series:
                self._series[seconds] = {
                    one: values_of(samples, self.start * 60 // seconds)
                    for one, samples in self._scraped(seconds).items()
                }
        return self._series[seconds]

    def _scraped(self, seconds):
        """By series, its values by scrape."""
        found = {}
        for minute, sidecar in self.scrapes(seconds):
            for one, value in sidecar.samples(minute):
                if not (self.left_out and re.search(self.left_out, one[0])):
                    found.setdefault(one, {})[round(minute * 60 / seconds)] = value
        return found | {one: sampled(phases, seconds, grows=grows) for one, (phases, grows) in self.added.items()}

    def scrapes(self, seconds=SCRAPE):
        """The minute, counted from the pod's start, and the sidecar after each poll at which it is scraped."""
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
            if number * self.poll % seconds == 0:
                yield minute, sidecar


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
