"""Shorthand for a vLLM's polls, and for what the plug-in in it sends."""

import math
from dataclasses import replace

from sidecar.analysis.evidence import Acceptance, Estimate, Evidence
from sidecar.analysis.state import State
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, PageSnapshot
from sidecar.errors import TimedOut
from sidecar.requests.messages import (
    FinishedRequest,
    Hello,
    HelloState,
    ReportEnd,
    ReportPart,
    Row,
    Speculation,
    StepTally,
    Table,
)
from sidecar.requests.tally import NOTHING, Outcome, Tally
from sidecar.settings import Settings

EDGES = (0.1, 1.0, math.inf)
USUAL = {Table.PROMPT_TOKENS: 0, Table.OUTPUT: "free", Table.ADAPTER: ""}
EAGLE = Speculation("eagle", 3)


def snap(engine="0", drafts=0, *, usage=0.5, model="m", traits=(), accepted=None, **more):
    """An engine that has drafted 3 tokens ``drafts`` times, for as many requests."""
    counters = {Counter.DRAFTS: drafts, Counter.DRAFT_TOKENS: 3 * drafts, Counter.ACCEPTED_TOKENS: 2 * drafts}
    if accepted is not None:
        counters[Counter.ACCEPTED_TOKENS] = accepted
    counters |= {Counter.FIRST_TOKENS: drafts}
    return EngineSnapshot(
        EngineKey(model, engine),
        more.get("counters", {key: float(value) for key, value in counters.items()}),
        (float(drafts),),
        {Gauge.KV_CACHE_USAGE: usage, Gauge.REQUESTS_RUNNING: 1.0},
        {Phase.TTFT: HistogramReading(EDGES, (float(drafts), float(drafts), float(drafts)))},
        1600,
        frozenset(traits),
    )


def window(rate, **changes):
    """A sliding window that accepts ``rate`` of its draft tokens, with enough traffic for a verdict."""
    values = {"seconds": 100.0, "requests": 100, "drafts": 1000.0, "draft_tokens": 3000.0, "share": 1.0} | changes
    return Acceptance(**({"accepted_tokens": rate * values["draft_tokens"]} | values))


def evidence(rate, *, speedup=None, speculation=None, costs=None, **changes):
    """``speedup`` is a ratio and, if it has one, its standard error; ``changes`` are of the window."""
    estimate = Estimate(*speedup) if speedup else None
    return Evidence(window=window(rate, **changes), speedup=estimate, speculation=speculation, costs=costs)


def page(*engines, start=1.0, malformed=0):
    return PageSnapshot(engines, start, malformed)


class Server:
    """A vLLM's state, polled every second from ``at`` on."""

    def __init__(self, at=1000.0, **settings):
        self.sink = self.state = State(Settings(**settings), listening_since=at)
        self.at = at

    def poll(self, *engines, seconds=1.0, **options):
        self.at += seconds
        self.sink.scraped(self.at, 0.005, 1.0, page(*engines, **options))
        return self.report()

    def fail(self, error=None, seconds=1.0):
        self.at += seconds
        self.sink.failed(self.at, error or TimedOut("x"))
        return self.report()

    def report(self, later=0.0, **more):
        return self.state.report(self.at + later, **more)

    def engines(self):
        return {engine.key: engine for model in self.report().models for engine in model.engines}

    def drafts(self):
        return {key.engine: engine.counters[Counter.DRAFTS] for key, engine in self.engines().items()}

    def model(self, name="m"):
        return {model.model_name: model for model in self.report().models}[name]

    def temperature(self, label, model="m"):
        return {one.temperature: one for one in self.model(model).temperatures}[label]

    def group(self, name, model="m"):
        return {one.group: one for one in self.model(model).groups}[name]


class PluginEnd:
    """One engine's plug-in, as ``server`` hears it: counts that grow, sent with ``tick``."""

    def __init__(self, server, connection=1, *, start="a", started=None, **hello):
        self.server, self.connection = server, connection
        self.start, self.started = start, server.at if started is None else started
        self.total, self.rows, self.since = NOTHING, {}, {}
        self.hello(**hello)

    def hello(self, *, state=HelloState.OBSERVING, reason="", model="m", engine=0, speculation=EAGLE, plugin="0.1.0"):
        self.server.state.plugin.receive(
            self.connection,
            Hello(
                plugin=plugin,
                vllm="0.32.0",
                model=model,
                engine=engine,
                start=self.start,
                started=self.started,
                state=state,
                reason=reason,
                speculation=speculation,
            ),
        )

    def serve(self, temperature=0, *, requests=1, drafts=10, accepted=None, table=None, key=None):
        """Counts requests, each draft of 3 tokens, 2 of them accepted; a table that is not named has one row."""
        accepted = 2 * drafts if accepted is None else accepted
        tally = Tally(stopped=requests, drafts=drafts, draft_tokens=3 * drafts, accepted_tokens=accepted)
        positions = {"drafted_at": (drafts,) * 3, "accepted_at": (drafts, max(accepted - drafts, 0), 0)}
        self._add(Table.TEMPERATURE, temperature, replace(tally, **positions) if accepted >= drafts else tally)
        for by, usual in USUAL.items():
            self._add(by, key if by == table else usual, tally)
        self.total += tally
        return self

    def _add(self, table, key, tally):
        self.rows[table, key] = self.rows.get((table, key), NOTHING) + tally
        self.since.setdefault((table, key), self.server.at + len(self.since) / 1000)

    def tick(self, *, lost=0, steps=(), only=None, finished=()):
        """Sends a whole report; ``only``: of the temperatures this one alone, since the others have not changed."""
        rows = [one for one in self.rows if only is None or one[0] is not Table.TEMPERATURE or one[1] == only]
        tables = {table: tuple(self._row(table, key) for by, key in rows if by is table) for table in Table}
        reported = tuple(Row(key=key, since=0.0, counts=StepTally(**counts)) for key, counts in steps)
        end = ReportEnd(total=self.total, lost=lost)
        self.send(ReportPart(**tables, steps=reported, finished=finished, end=end))
        return self

    def _row(self, table, key):
        return Row(key=key, since=self.since[table, key], counts=self.rows[table, key])

    def finish(self, temperature=0, **changes):
        """Serves a request to its end, and reports it."""
        request = finished(temperature, self.server.at, **changes)
        self.serve(temperature, drafts=request.drafts, accepted=request.accepted_tokens)
        return self.tick(only=temperature, finished=(request,))

    def send(self, message):
        self.server.state.plugin.receive(self.connection, message)

    def counted(self, **more):
        """vLLM's own counters of the same."""
        return snap(drafts=self.total.drafts, accepted=self.total.accepted_tokens, **more)

    def close(self):
        self.server.state.plugin.receive(self.connection, None)


def finished(temperature=0, at=1000.0, **changes):
    """A request of 31 tokens in two seconds, half a second after it arrived, that accepted 20 of 30."""
    values = {
        "temperature": temperature,
        "drafts": 10,
        "draft_tokens": 30,
        "accepted_tokens": 20,
        "lengths": (0, 0, 10, 0),
        "prompt_tokens": 100,
        "output_tokens": 31,
        "arrival": at - 2.5,
        "first_token": at - 2.0,
        "last_token": at,
        "outcome": Outcome.STOPPED,
    }
    return FinishedRequest(**(values | changes))
