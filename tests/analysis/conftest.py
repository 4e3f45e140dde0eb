"""A simulated engine that counts as vLLM does and knows the truth, and the player that feeds attribution with it."""

import random
from collections import Counter as Tally
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sidecar.analysis.attribution.attributor import Attributor
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.engine.continuation import Continuation
from sidecar.engine.names import Counter, Gauge
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot
from sidecar.engine.timeline import Timeline
from sidecar.requests.record import Outcome, RequestAcceptance, RequestRecord, RequestStart

START = 1_000_000.0


@dataclass
class Spec:
    """A request as a client sends it; ``abort`` is seconds after its start."""

    start: float
    tokens: int
    temperature: float | None = 0.0
    stream: bool = True
    exact: bool = False
    choices: int = 1
    abort: float | None = None
    tells_usage: bool = True
    seen: bool = True


@dataclass
class _Run:
    spec: Spec
    name: str
    left: int
    engine: int
    first: float | None = None
    end: float | None = None
    drafts: int = 0
    accepted: int = 0
    tokens: int = 0
    events: int = 0
    histogram: list = field(default_factory=list)


@dataclass
class Traffic:
    """``polls`` has (time, one snapshot an engine); ``truth`` (drafts, accepted tokens) by request."""

    records: list
    polls: list
    truth: dict


def simulate(
    specs, *, k=3, engines=1, step=0.025, poll=1.0, limit=1000, accepts=None, drafts=None, restart_at=None, seed=7
):
    """Runs the requests to their end. ``accepts`` and ``drafts``: the chances, by temperature."""
    accepts = accepts or (lambda temperature: 0.9 - 0.5 * (temperature or 0.0))
    odds = (random.Random(seed), k, accepts, drafts or (lambda temperature: 1.0))
    waiting = [
        _Run(spec, f"r{number}", spec.tokens, number % engines)
        for number, spec in enumerate(sorted(specs, key=lambda spec: spec.start))
        for _ in range(spec.choices)
    ]
    counters = [dict.fromkeys(Counter, 0.0) for _ in range(engines)]
    running, done, polls = [], [], [(START, _snapshots(counters, [], []))]
    now, next_poll = START, START + poll
    while waiting or running:
        now += step
        while waiting and START + waiting[0].spec.start <= now - step and len(running) < limit:
            running.append(waiting.pop(0))
        for engine in range(engines):
            mine = [run for run in running if run.engine == engine]
            if mine:
                counters[engine][Counter.STEPS] += 1
            for run in mine:
                _step(run, now, counters[engine], odds)
        done += [run for run in running if run.end is not None]
        running = [run for run in running if run.end is None]
        if restart_at is not None and now >= START + restart_at:
            restart_at = None
            counters = [dict.fromkeys(Counter, 0.0) for _ in range(engines)]
            for run in running:
                run.end, run.left = now, -1
            done, running = done + running, []
        if now >= next_poll:
            arrived = [run for run in waiting if START + run.spec.start <= now - step]
            polls.append((now, _snapshots(counters, running, arrived)))
            next_poll += poll
    polls += [(now + after * poll, _snapshots(counters, [], [])) for after in (1, 2)]
    records, truth = _records(done)
    return Traffic(records, polls, truth)


def _step(run, now, counter, odds):
    spec, (rng, k, accepts, drafts) = run.spec, odds
    if spec.abort is not None and now >= START + spec.start + spec.abort:
        run.end, run.left = now, -1
        return
    accepted = 0
    if run.first is None:
        run.first = now
    elif rng.random() < drafts(spec.temperature):
        while accepted < k and rng.random() < accepts(spec.temperature):
            accepted += 1
        run.drafts += 1
        run.accepted += accepted
        run.histogram = run.histogram or [0] * (k + 1)
        run.histogram[accepted] += 1
        counter[Counter.DRAFTS] += 1
        counter[Counter.DRAFT_TOKENS] += k
        counter[Counter.ACCEPTED_TOKENS] += accepted
    given = min(accepted + 1, run.left)
    run.left -= given
    run.tokens += given
    run.events += 1
    counter[Counter.GENERATION_TOKENS] += given
    if run.left == 0:
        run.end = now


def _snapshots(counters, running, waiting):
    gauges = [
        {
            Gauge.REQUESTS_RUNNING: float(sum(run.engine == engine for run in running)),
            Gauge.REQUESTS_WAITING: float(sum(run.engine == engine for run in waiting)),
        }
        for engine in range(len(counters))
    ]
    return [
        EngineSnapshot(EngineKey("m", str(engine)), dict(counter), (), gauges[engine], {}, None)
        for engine, counter in enumerate(counters)
    ]


def _records(done):
    by_name = {}
    for run in done:
        by_name.setdefault(run.name, []).append(run)
    records, truth = [], {}
    for name, runs in by_name.items():
        spec = runs[0].spec
        if not spec.seen:
            continue
        cut = any(run.left < 0 for run in runs)
        firsts = [run.first for run in runs if run.first is not None]
        known = spec.tells_usage and (not cut or spec.stream)
        truth[name] = (sum(run.drafts for run in runs), sum(run.accepted for run in runs))
        acceptance = None
        if spec.exact and not cut:
            acceptance = RequestAcceptance(
                runs[0].drafts, runs[0].drafts * 3, runs[0].accepted, tuple(runs[0].histogram)
            )
        records.append(
            RequestRecord(
                id=name,
                path="/v1/completions",
                model="m",
                temperature=spec.temperature,
                choices=spec.choices,
                stream=spec.stream,
                start=START + spec.start,
                first_token=min(firsts) if spec.stream and firsts else None,
                end=max(run.end for run in runs),
                outcome=Outcome.ABORTED if cut else Outcome.COMPLETED,
                completion_tokens=sum(run.tokens for run in runs) if known else None,
                stream_events=sum(run.events for run in runs) if spec.stream else 0,
                acceptance=acceptance,
            )
        )
    return records, truth


def play(traffic, options=None, *, starts=True, delay=lambda record: 0.0, skip=lambda number: False, flush=True):
    """Feeds an attributor in chronological order; returns it and its results."""
    events = [(record.end + delay(record), 0, record) for record in traffic.records]
    if starts:
        events += [(record.start, 1, RequestStart(record.id, record.start)) for record in traffic.records]
    events += [(at, 2, engines) for number, (at, engines) in enumerate(traffic.polls) if not skip(number)]
    attributor = Attributor(TemperatureBuckets(), options)
    engines = {engine.key: (Continuation(), Timeline(3600)) for engine in traffic.polls[0][1]}
    timelines = [timeline for _, timeline in engines.values()]
    settled = []
    for at, _, event in sorted(events, key=lambda event: event[:2]):
        if isinstance(event, RequestRecord):
            attributor.finished(event)
        elif isinstance(event, RequestStart):
            attributor.started(event)
        else:
            for engine in event:
                continuation, timeline = engines[engine.key]
                timeline.append(at, continuation.advance(engine))
            settled += attributor.poll(at, timelines)
    if flush:
        settled += attributor.flush()
    return attributor, settled


def steady(count, every=0.5, **changes):
    """Requests at a steady rate, of 60 to 160 tokens, at temperatures that shift from cold to hot."""
    rng = random.Random(3)
    temperatures = (0.0, 0.4, 0.8)
    specs = []
    for number in range(count):
        warm = number / count
        temperature = rng.choices(temperatures, (1.2 - warm, 0.6, 0.2 + warm))[0]
        spec = Spec(number * every + rng.random() * every, rng.randint(60, 160), temperature, number % 2 == 0)
        specs.append(spec)
        for name, value in changes.items():
            setattr(spec, name, value(number) if callable(value) else value)
    return specs


def sums(requests, truth, label):
    """(attributed, true) acceptance of a temperature, over the requests that have numbers; 3 tokens a draft."""
    known = [request for request in requests if request.temperature == label and request.draft_tokens > 0]
    drafted = sum(request.draft_tokens for request in known)
    drafts = sum(truth[request.id][0] for request in known)
    accepted = sum(truth[request.id][1] for request in known)
    return sum(request.accepted_tokens for request in known) / drafted, accepted / (3 * drafts)


def assert_close(settled, traffic, tolerance=0.03):
    for label in ("0", "0.3-0.5", "0.7-1"):
        found, true = sums(settled, traffic.truth, label)
        assert found == pytest.approx(true, abs=tolerance), label


def each_once(settled, traffic):
    return Tally(request.id for request in settled) == Tally(record.id for record in traffic.records)


@dataclass(frozen=True)
class Lab:
    """The parts from which tests build scenes."""

    Spec = Spec
    START = START
    simulate = staticmethod(simulate)
    play = staticmethod(play)
    steady = staticmethod(steady)
    sums = staticmethod(sums)
    assert_close = staticmethod(assert_close)
    each_once = staticmethod(each_once)


@pytest.fixture
def lab():
    return Lab()


@pytest.fixture(scope="session")
def recordings():
    return Path(__file__).parents[1] / "data" / "recordings"
