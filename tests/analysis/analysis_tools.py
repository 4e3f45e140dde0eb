"""Shorthand for a vLLM's polls, and for what the plug-in in it sends."""

import math
from dataclasses import replace

from sidecar.analysis.engine.health import Vitals
from sidecar.analysis.evidence import Acceptance, Evidence
from sidecar.analysis.speed.scatter import RequestSpread
from sidecar.analysis.speed.speedup import Speedup
from sidecar.analysis.state import State
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, PageSnapshot
from sidecar.errors import TimedOut
from sidecar.requests.keys import Bit, CellKey, Table
from sidecar.requests.messages import (
    FinishedRequest,
    Hello,
    HelloState,
    ReportEnd,
    ReportPart,
    Speculation,
    StepKey,
    StepTally,
)
from sidecar.requests.tally import NO_REQUESTS, Outcome, Tally
from sidecar.settings import Settings

BITS = {"structured": Bit.STRUCTURED, "filtered": Bit.FILTERED, "penalties": Bit.PENALTIES}
EAGLE = Speculation("eagle", 3)
OWN = "own"  # the id of the server whose page is polled


def snap(engine="0", drafts=0, *, usage=0.5, model="m", traits=(), accepted=None, **more):
    """An engine that has drafted 3 tokens ``drafts`` times, for as many requests.

    Another one is running, unless it ``is_idle``.
    """
    running = {Gauge.REQUESTS_RUNNING: 1.0}
    if more.get("is_idle"):
        running = {Gauge.REQUESTS_RUNNING: 0.0, Gauge.REQUESTS_WAITING: 0.0}
    counters = {
        Counter.FIRST_TOKENS: float(drafts),
        Counter.DRAFTS: float(drafts),
        Counter.DRAFT_TOKENS: 3.0 * drafts,
        Counter.ACCEPTED_TOKENS: 2.0 * drafts if accepted is None else float(accepted),
    }
    return EngineSnapshot(
        EngineKey(model, engine),
        more.get("counters", counters),
        (float(drafts),),
        {Gauge.KV_CACHE_USAGE: usage} | running,
        {Phase.TTFT: HistogramReading((0.1, 1.0, math.inf), (float(drafts),) * 3)},
        1600,
        frozenset(traits),
    )


def window(rate, **changes):
    """A sliding window that accepts ``rate`` of its draft tokens.

    It has enough traffic for a verdict.
    """
    values = {
        "seconds": 100.0,
        "requests": 100,
        "drafts": 1000.0,
        "draft_tokens": 3000.0,
        "share": 1.0,
    } | changes
    return Acceptance(**({"accepted_tokens": rate * values["draft_tokens"]} | values))


def evidence(rate, *, speedup=None, speculation=None, costs=None, **changes):
    """``speedup`` is a ratio and, if it has one, its standard error.

    ``changes`` are of the window.
    """
    known = faster(*speedup) if speedup else None
    return Evidence(
        window=window(rate, **changes), speedup=known, speculation=speculation, costs=costs
    )


def faster(ratio, error=0.0):
    """A speedup over plain steps of 20 ms."""
    return Speedup(
        ratio=ratio, error=error, plain_seconds=0.02, actual_seconds=0.02 / ratio, tokens=1000
    )


def page(*engines, start=1.0, malformed=0, servers=()):
    return PageSnapshot(engines, start, malformed, servers=frozenset(servers))


class Server:
    """A vLLM's state, polled every second from ``at`` on.

    Its page has the id ``server``; without one, nothing tells whose a plug-in is but its growth.
    """

    def __init__(self, at=1000.0, *, server=OWN, **settings):
        self.sink = self.state = State(Settings(**settings), listening_since=at)
        self.at = at
        self.server = server

    def poll(self, *engines, seconds=1.0, **options):
        self.at += seconds
        if self.server is not None:
            options = {"servers": {self.server}} | options
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
        return {
            key.engine: engine.counters[Counter.DRAFTS] for key, engine in self.engines().items()
        }

    def model(self, name="m"):
        return {model.model_name: model for model in self.report().models}[name]

    def temperature(self, label, model="m"):
        return {row.temperature: row for row in self.model(model).temperatures}[label]

    def group(self, name, model="m"):
        return {row.group: row for row in self.model(model).groups}[name]


class PluginEnd:
    """One engine's plug-in, as ``server`` hears it: counts that grow, sent with ``tick``."""

    def __init__(
        self, server, connection=1, *, start=None, started=None, engine=0, of=OWN, **hello
    ):
        """``of`` is the id of the vLLM server that it is in; None: it says none."""
        self.server, self.connection, self.engine = server, connection, engine
        self.start = start or str(connection)
        self.started = server.at if started is None else started
        self.total, self.cells, self.endings = NO_REQUESTS, {}, {}
        self.generated = 0  # tokens
        self.heartbeat = 0  # engine steps
        self.of = server.server if of is OWN else of
        self.hello(**hello)

    def hello(self, *, model="m", speculation=EAGLE, **more):
        life = {"model": model, "engine": self.engine, "start": self.start, "started": self.started}
        versions = {"plugin": "0.1.0", "vllm": "0.32.0"}
        said = {"state": HelloState.OBSERVING, "speculation": speculation, "server": self.of} | more
        self.send(Hello(**versions, **life, **said))

    def serve(
        self,
        temperature=0,
        *,
        requests=1,
        drafts=10,
        accepted=None,
        table=None,
        key=None,
        outcome=Outcome.STOPPED,
    ):
        """Counts requests, each draft of 3 tokens, of which by default 2 are accepted.

        They have the usual keys but for that of the ``table``.
        """
        accepted = 2 * drafts if accepted is None else accepted
        self.total += Tally(
            **{outcome: requests},
            drafts=drafts,
            draft_tokens=3 * drafts,
            accepted_tokens=accepted,
        )
        ended = [requests if one is outcome else 0 for one in Outcome]
        grown = [*ended, 0, 0, 0, drafts, *_by_accepted(drafts, accepted)]
        cell = _cell(temperature, table, key)
        before = self.cells.get(cell, (0,) * len(grown))
        self.cells[cell] = tuple(map(sum, zip(before, grown, strict=True)))
        return self

    def generate(self, tokens, temperature=0):
        """Serves a request that drafts nothing."""
        self.generated += tokens
        return self.serve(temperature, drafts=0)

    def tick(self, *, lost=0, steps=(), only=None, finished=()):
        """Sends a whole report.

        ``only`` sends this temperature alone, since the others have not changed.
        """
        cells = tuple(
            (cell, numbers)
            for cell, numbers in self.cells.items()
            if only is None or cell.temperature == only
        )
        reported = tuple(
            (StepKey(decodes, 0, is_mixed=False), StepTally(**counts)) for decodes, counts in steps
        )
        end = ReportEnd(
            lost=lost,
            generation_tokens=self.generated,
            steps=self.heartbeat,
            running=0,
            waiting=0,
            at=self.server.at,
            endings=dict(self.endings),
        )
        self.send(ReportPart(cells=cells, steps=reported, finished=finished, end=end))
        return self

    def finish(self, temperature=0, *, table=None, key=None, **changes):
        """Serves a request to its end, and reports it."""
        request = finished(temperature, self.server.at, **changes)
        self.generated += request.output_tokens
        self.serve(
            temperature,
            drafts=request.drafts,
            accepted=request.accepted_tokens,
            table=table,
            key=key,
            outcome=request.outcome,
        )
        if request.ending is not None:
            self._end(request)
        return self.tick(only=temperature, finished=(request,))

    def _end(self, request):
        """Counts how the output of a finished request ends."""
        counts = {
            request.outcome: 1,
            "drafts": request.drafts,
            "draft_tokens": request.draft_tokens,
            "accepted_tokens": request.accepted_tokens,
        }
        before = self.endings.get(request.ending, NO_REQUESTS)
        self.endings[request.ending] = before + Tally(**counts)

    def send(self, message):
        self.server.state.plugin.receive(self.connection, message)

    def counted(self, **more):
        """vLLM's own counters of the same."""
        return snap(
            str(self.engine), self.total.drafts, accepted=self.total.accepted_tokens, **more
        )

    def close(self):
        self.send(None)


def _cell(temperature, table=None, key=None):
    return CellKey(
        temperature=None if temperature == "other" else temperature,
        bits=BITS.get(key, 0),
        prompt=key if table == Table.PROMPT_TOKENS else 0,
        adapter=key or None if table == Table.ADAPTER else None,
    )


def _by_accepted(drafts, accepted):
    """Drafts of 3 tokens by how many of these were accepted; earlier positions first."""
    at = []
    for _ in range(3):
        at.append(min(drafts, accepted - sum(at)))
    return drafts - at[0], at[0] - at[1], at[1] - at[2], at[2] + accepted - sum(at)


class Pod(Server):
    """A vLLM with its plug-in."""

    def __init__(self, **settings):
        super().__init__(
            **{"thresholds": {"min_requests": 5, "min_drafts_per_second": 0.1}} | settings
        )
        self.plugin = PluginEnd(self)
        self.poll(snap(drafts=0))

    def serve(self, *traffic, polls=1, seconds=1.0, **options):
        """At each of ``polls``, each of ``traffic``: (temperature, drafts, accepted tokens)."""
        for _ in range(polls):
            for temperature, drafts, accepted in traffic:
                self.plugin.serve(temperature, drafts=drafts, accepted=accepted, **options)
            self.plugin.tick()
            self.poll(self.plugin.counted(), seconds=seconds)


def finished(temperature=0, at=1000.0, **changes):
    """A request of 31 tokens in two seconds, which began half a second after it arrived.

    It accepted 20 of 30 draft tokens.
    """
    drafted = {"drafts": 10, "draft_tokens": 30, "accepted_tokens": 20}
    times = {"arrival": at - 2.5, "first_token": at - 2.0, "last_token": at}
    rest = {
        "temperature": temperature,
        "sampling": "plain" if temperature else "greedy",
        "prompt_tokens": 100,
        "output_tokens": 31,
        "outcome": Outcome.STOPPED,
    }
    return FinishedRequest(**(drafted | times | rest | changes))


def vitals(key, **changes):
    """Those of an engine with a running request of which nothing has moved."""
    plain = Vitals(
        key=key,
        running=1,
        waiting=0,
        moving=(0,),
        is_awake=None,
        is_told=True,
        has_generated=True,
        has_collapsed=False,
    )
    return replace(plain, **changes)


def known_spread(variance):
    """How requests differ, after so many that what is assumed no longer counts."""
    spread = RequestSpread()
    sd = variance**0.5
    for _ in range(20_000):
        spread.add(1 + sd, 1.0)
        spread.add(1 - sd, 1.0)
    return spread
