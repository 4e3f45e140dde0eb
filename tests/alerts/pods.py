"""Pods for scenes: what Prometheus would have scraped from a sidecar.

The sidecar runs beside a vLLM with a planned traffic.

From vLLM's page on everything is the sidecar's own code: its parser, its analysis, its metrics. A
quantity of the traffic is a number or a plan (``vllm_pages.plan``).
"""

import json
import math
import re
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from threading import Lock

from sidecar.analysis.distributions import Distribution
from sidecar.analysis.report import OwnReport
from sidecar.analysis.state import State
from sidecar.engine.exposition import PageReader
from sidecar.engine.names import wanted
from sidecar.engine.snapshot import SnapshotReader
from sidecar.errors import TimedOut
from sidecar.export.declaration import ReportView
from sidecar.export.metrics import METRICS
from sidecar.settings import load_settings
from tests.alerts.vllm_pages import (
    AT_ONCE,
    EPOCH,
    PLAIN_STEP,
    PROMPT_TOKENS,
    REQUESTS,
    RUNNING,
    WAITING,
    Engine,
    Vllm,
    plan,
    planned,
)

RUNBOOKS = "https://runbooks.example"
DASHBOARDS = "https://grafana.example"
SCRAPE = 60  # seconds
DAY = 1440  # minutes
POD = "vllm-7d9c4bf6c5-x2x9z"  # of a Deployment


@dataclass
class Firing:
    """An alert that is expected to fire from minute ``since`` to minute ``until``.

    ``value`` is the one that its texts quote. ``labels`` are without the rule's own.
    """

    labels: dict
    value: float = 1.0
    alert: str | None = None  # None: the scene's
    severity: str | None = None
    since: float = 0
    until: float = math.inf
    # Those that differ from what the rule and the settings give.
    annotations: dict = field(default_factory=dict)


class Pod:
    """One vLLM and its sidecar.

    Each method plans something and returns the pod, so that a scene reads like a list.
    """

    def __init__(
        self, instance, *, model="m", namespace="prod", minutes=None, start=0, poll=30, **thresholds
    ):
        """It lives for ``minutes`` from minute ``start`` on.

        By default it lives until its scene's last check. The sidecar polls every ``poll`` seconds.
        """
        self.minutes, self.start, self.poll = minutes, start, poll
        self.own = {"namespace": namespace, "job": "vllm", "instance": f"{instance}:9911"}
        self.model = model
        self.vllm = Vllm(model)
        self.environment = {
            f"SPECDEC_THRESHOLDS__{name.upper()}": str(value) for name, value in thresholds.items()
        } | {
            "SPECDEC_ALERTING__RUNBOOKS": RUNBOOKS,
            "SPECDEC_ALERTING__DASHBOARDS": DASHBOARDS,
        }
        self.firings = []
        self.fails = lambda _: False  # by poll number
        self.error = lambda _: TimedOut("the scene wants it")
        self.hangs = lambda _: False  # by minute
        self.restarts = set()  # minutes
        self.unplugged = math.inf  # the minute from which vLLM has no plug-in any more
        self.gap = range(0)  # the minutes in which nothing is there to scrape
        self.left_out = None  # what this sidecar does not export: a pattern of names
        self.added = {}  # by metric and labels, phases and whether they are a counter's
        self._scraped, self._series = {}, {}  # by seconds between scrapes
        self._building = Lock()  # mutations share the pods

    # What the scene expects of it.

    def fires(
        self,
        value=1.0,
        *,
        context=(),
        labels=None,
        alert=None,
        severity=None,
        since=0,
        until=math.inf,
        **more,
    ):
        """The alert on its model fires.

        ``more`` are further labels, and ``labels`` replaces the model's.
        """
        labels = self.own | ({"model_name": self.model} if labels is None else labels) | more
        annotations = {"context": "\n".join(context)} if context else {}
        self.firings.append(Firing(labels, value, alert, severity, since, until, annotations))
        return self

    def sidecar_fires(self, value=1.0, **expected):
        """An alert on the vLLM or the sidecar as such fires."""
        return self.fires(value, labels={}, **expected)

    def outage_fires(self, **expected):
        """The alert on its model as such fires, in its namespace."""
        labels = {"namespace": self.own["namespace"], "model_name": self.model}
        self.firings.append(Firing(labels, 0.0, **expected))
        return self

    # The traffic.

    def drafting(self, drafts, acceptance, *, engine="0", requests=REQUESTS, k=3, first=None):
        """``drafts`` per second of ``k`` tokens; ``requests`` begin per minute.

        ``first`` is the acceptance of the first position, if it differs.
        """
        planned_engine = self.vllm.engine(engine)
        planned_engine.drafts, planned_engine.acceptance = planned(drafts), planned(acceptance)
        planned_engine.k, planned_engine.requests = planned(k), planned(requests)
        planned_engine.first = planned(acceptance if first is None else first)
        return self

    def bucket(self, temperature, drafts, acceptance):
        """One temperature's work, with the plug-in.

        It has ``drafts`` per second, and as many requests finish per minute as usual.

        What the engine drafts is all temperatures together.
        """
        split = self.vllm.temperatures[temperature] = Engine()
        split.drafts, split.acceptance = planned(drafts), planned(acceptance)
        split.requests = planned(REQUESTS)
        requests = REQUESTS * len(self.vllm.temperatures)
        return self.drafting(
            self.vllm.drafts_of_all, self.vllm.acceptance_of_all, requests=requests
        )

    def generating(self, tokens, *, engine="0", step=PLAIN_STEP):
        """Tokens per second without drafts, in steps of so many seconds, as its plug-in tells."""
        self.vllm.engine(engine).plain_tokens, self.vllm.engine(engine).step = planned(tokens), step
        self.vllm.is_timed = True
        return self

    def prompts(self, tokens, *, engine="0"):
        """Requests have prompts of so many tokens, and hold hardly more."""
        self.vllm.engine(engine).prompt_tokens = tokens
        return self

    def finishing(self, acceptance, *, temperature="0", pace=1.0):
        """What the plug-in tells of each finished request.

        ``acceptance`` is its acceptance, None while none finishes, and ``pace`` its plain time per
        token / actual.
        """
        self.vllm.finishing[temperature] = planned(acceptance), planned(pace)
        return self

    def looping(self, share):
        """Of the requests that finish, a ``share`` ends in a loop; the others end as they should.

        Without it, the plug-in does not tell.
        """
        self.vllm.looping = planned(share)
        return self

    def tpot(self, p50, p99, *, then=None, minutes=0, engine="0", edges=()):
        """``then``: the two after so many minutes; ``edges`` are those of vLLM's buckets."""
        self.vllm.engine(engine).tpot_edges = edges
        self.vllm.engine(engine).tpot = ((minutes, (p50, p99)), (0, then or (p50, p99)))
        return self

    def baseline(self, p50, p99):
        self.environment["SPECDEC_BASELINE"] = json.dumps(
            {self.model: {"tpot": {"p50": p50, "p99": p99}}}
        )
        self.environment["SPECDEC_BASELINE_BY_REQUEST"] = json.dumps({self.model: ["tpot"]})
        return self

    def cache(self, peak, waiting, *, capacity=None, engine="0"):
        """The KV cache's usage, requests waiting, and those of them that wait for capacity."""
        self.gauge("kv_cache_usage_perc", peak, engine=engine)
        self.gauge(WAITING, waiting, engine=engine)
        return self.gauge(f"{WAITING}_by_reason", capacity, engine=engine, reason="capacity")

    def gauge(self, name, value, *, engine="0", **labels):
        """A gauge of vLLM's page, by its name without ``vllm:``; None: it is not on the page."""
        self.vllm.engine(engine).gauges[name, tuple(labels.items())] = planned(value)
        return self

    def counter(self, name, a_minute, *, engine="0", **labels):
        """A counter of vLLM's page, by its name with ``_total``, and its growth a minute."""
        self.vllm.engine(engine).counters[name, tuple(labels.items())] = planned(a_minute)
        return self

    def timed(self, speedup, *, engine="0", reference=1.0):
        """A baseline, and a plug-in that tells of steps that make speculation so fast.

        ``reference`` is the baseline's time over plain pods'.
        """
        self.vllm.is_timed = True
        self.vllm.engine(engine).speedup = planned(speedup)
        self.vllm.engine(engine).has_baseline = True
        curve = {
            "running": [1, 64],
            "seconds": [PLAIN_STEP * reference] * 2,
            "context": PROMPT_TOKENS,
            "contexts": [1, 2 * PROMPT_TOKENS],
            "context_seconds": [0.0] * 2,
            "drift": 0.001,
        }
        self.environment["SPECDEC_PLAIN_STEPS"] = json.dumps({self.model: curve})
        return self

    def on(self, accelerator, *, measured_on):
        """Its plug-in names the first accelerator, its baseline the other one."""
        self.vllm.accelerator = accelerator
        curves = json.loads(self.environment["SPECDEC_PLAIN_STEPS"])
        curves[self.model]["accelerator"] = measured_on
        self.environment["SPECDEC_PLAIN_STEPS"] = json.dumps(curves)
        return self

    def untimed(self, speedup):
        """The same without a baseline."""
        self.timed(speedup)
        for engine in self.vllm.engines.values():
            engine.has_baseline = False
        del self.environment["SPECDEC_PLAIN_STEPS"]
        return self

    def speculating(self, speculation, vllm="0.32.0"):
        self.vllm.speculation, self.vllm.version = speculation, vllm
        return self

    def in_kubernetes(self):
        """Scraped by a monitor that adds the Pod's name."""
        self.own["pod"] = POD
        return self

    # What goes wrong.

    def failing(self, fails, error=None):
        """``fails`` says of a poll's number whether it fails; ``error`` is how, or tells how."""
        self.fails = fails
        if error is not None:
            self.error = error if callable(error) else lambda _: error
        return self

    def hanging(self, *spans):
        """Requests run, and within spans of minutes nothing moves while the page responds."""
        for engine in self.vllm.engines:
            self.gauge(RUNNING, AT_ONCE, engine=engine)
        self.hangs = lambda minute: any(start <= minute < end for start, end in spans)
        return self

    def restarting(self, *minutes):
        """vLLM and its plug-in start anew at these minutes."""
        self.restarts = set(minutes)
        return self

    def unplugging(self, minute):
        """vLLM starts anew without the plug-in."""
        self.unplugged = minute
        return self.restarting(minute)

    def away(self, start, end):
        """Neither vLLM nor its sidecar is there between two minutes.

        After the gap the sidecar starts anew.
        """
        self.gap = range(start, end)
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
        """The values, one every ``seconds``, as promtool reads them.

        They are by metric and labels, without the scrape's own labels.
        """
        with self._building:
            if seconds not in self._series:
                added = {
                    key: _sampled(phases, grows, seconds)
                    for key, (phases, grows) in self.added.items()
                }
                samples, start = self.scraped(seconds) | added, self.start * 60 // seconds
                self._series[seconds] = {
                    key: _notation(values, start) for key, values in samples.items()
                }
        return self._series[seconds]

    def scraped(self, seconds=SCRAPE):
        """By metric and labels, its values by scrape."""
        if seconds not in self._scraped:
            self._scraped[seconds] = self._scrape(seconds)
        return self._scraped[seconds]

    def _scrape(self, seconds):
        scraped = {}
        for minute, sidecar in self.scrapes(seconds):
            for key, value in sidecar.samples(minute):
                if not (self.left_out and re.search(self.left_out, key[0])):
                    scraped.setdefault(key, {})[round(minute * 60 / seconds)] = value
        return scraped

    def scrapes(self, seconds=SCRAPE):
        """The minute and the sidecar after each poll at which the sidecar is scraped.

        The minute counts from the pod's start.
        """
        self.vllm.lives = 0
        self.vllm.restart()
        sidecar = None
        for number in range(self.minutes * 60 // self.poll):
            minute = number * self.poll / 60
            if int(minute) in self.gap:
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
        self._settings = load_settings(None, pod.environment)
        self._started = pod.start + minute
        self._state = State(self._settings, EPOCH - 120 if minute == 0 else EPOCH + 60 * minute)
        self._pages, self._snapshots = PageReader(wanted(), self._settings.limits), SnapshotReader()

    def _at(self, minute):
        return EPOCH + 60 * (self._pod.start + minute)

    def poll(self, number, minute):
        """The plug-in reports twice in the two seconds before the poll, and at its moment."""
        pod, at, seconds = self._pod, self._at(minute), self._pod.poll
        served = seconds if number and not pod.hangs(minute) else 0
        last = min(served, 1)
        self._grow(minute, served - 2 * last)
        self._report(at - 2, minute, 0)
        self._grow(minute, last)
        self._report(at - 1, minute, served)
        self._grow(minute, last)

        if pod.vllm.engines and pod.fails(number):
            self._state.failed(at, pod.error(number))
        elif pod.vllm.engines:
            page = self._snapshots.read(self._pages.read(pod.vllm.page(minute)))
            self._state.scraped(at, 0.005, seconds, page)
        self._report(at, minute, 0)
        if self._state.health.suspects_stall:
            self._state.health.answered(at, is_paused=False)

    def _grow(self, minute, seconds):
        self._pod.vllm.grow(max(minute - self._pod.poll / 60, 0), seconds)

    def _report(self, at, minute, seconds):
        """Of the requests that finished in the last ``seconds``, and of all until now."""
        if minute >= self._pod.unplugged:
            self._pod.vllm.leave(self._state.plugin.receive)
        elif self._pod.vllm.has_plugin and not self._pod.hangs(minute):
            self._pod.vllm.report_to(self._state.plugin.receive, at, minute, seconds)

    def report(self, minute):
        return self._state.report(self._at(minute), OwnReport())

    def samples(self, minute):
        """Every sample as ((name, labels), value)."""
        # by promtool's clock, which begins at 0
        yield ("process_start_time_seconds", ()), 60.0 * self._started
        shown = ReportView(self.report(minute), self._settings)
        for metric in METRICS:
            for labels, value in metric.samples(shown):
                if not isinstance(value, Distribution):  # no rule reads one
                    yield (
                        (metric.name, tuple(zip(metric.labels, labels, strict=True))),
                        float(value),
                    )


def _sampled(phases, grows, seconds):
    """By scrape, the value of phases of (minutes, value); None is no sample.

    With ``grows``, it is what a counter has grown to by so much a minute.
    """
    value, samples, total = plan(*phases), {}, 0
    for scrape in range(ceil(sum(minutes for minutes, _ in phases) * 60 / seconds)):
        minute = scrape * seconds / 60
        samples[scrape] = total if grows else value(minute)
        total += (value(minute) or 0) * seconds / 60
    return samples


def _notation(samples, start):
    """promtool's, for values by scrape from ``start`` on.

    The series is stale after the last value, as in Prometheus.
    """
    values = [samples.get(scrape) for scrape in range(max(samples) + 1)]
    numbers = ("_" if value is None else f"{value:.12g}" for value in values)
    texts = ["_"] * start + [*numbers, "stale"]
    runs = [(text, len(list(run))) for text, run in groupby(texts)]
    return " ".join(
        text if times == 1 else f"_x{times}" if text == "_" else f"{text}x{times - 1}"
        for text, times in runs
    )
