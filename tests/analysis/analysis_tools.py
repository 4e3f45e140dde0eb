"""Shorthand for a vLLM's polls, and for what the plug-in in it sends."""

import math

from sidecar.analysis.state import State
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, PageSnapshot
from sidecar.errors import TimedOut
from sidecar.requests.messages import (
    AdapterTotals,
    Endings,
    FinishedRequest,
    Hello,
    HelloState,
    Outcome,
    OutputTotals,
    PromptTotals,
    Speculation,
    StepTotals,
    TemperatureTotals,
    Tick,
    Totals,
)
from sidecar.settings import Settings

EDGES = (0.1, 1.0, math.inf)
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
    """One engine's plug-in, as ``server`` hears it: totals that grow, sent with ``tick``."""

    def __init__(self, server, connection=1, *, start="a", started=None, **hello):
        self.server, self.connection = server, connection
        self.start, self.started = start, server.at if started is None else started
        self.totals = {}  # by temperature: requests, drafts, accepted tokens
        self.groups = {}  # by (table, key): the same
        self.hello(**hello)

    def hello(self, *, state=HelloState.OBSERVING, reason="", model="m", engine=0, speculation=EAGLE, plugin="0.1.0"):
        self.server.state.plugin.heard(
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

    def serve(self, temperature=0, *, requests=1, drafts=10, accepted=20, table=None, key=None):
        """Counts requests, each draft of 3 tokens."""
        for totals, name in ((self.totals, temperature), (self.groups, (table, key))):
            if name != (None, None):
                old = totals.get(name, (0, 0, 0))
                totals[name] = (old[0] + requests, old[1] + drafts, old[2] + accepted)
        return self

    def tick(self, *, lost=0, steps=(), only=None, at=None):
        """Sends the totals; ``only``: rows of this temperature alone."""
        found = {name: one for name, one in self.totals.items() if only is None or name == only}
        drafts, accepted = (sum(one[index] for one in self.totals.values()) for index in (1, 2))
        self.server.state.plugin.heard(
            self.connection,
            Tick(
                at=self.server.at if at is None else at,
                lost=lost,
                total=Totals(drafts, 3 * drafts, accepted),
                temperature=tuple(_temperature(name, *one) for name, one in found.items()),
                prompt=self._rows("prompt", PromptTotals),
                output=self._rows("output", OutputTotals),
                adapter=self._rows("adapter", AdapterTotals),
                steps=tuple(StepTotals(*row) for row in steps),
            ),
        )
        return self

    def _rows(self, table, kind):
        found = ((key, one) for (by, key), one in self.groups.items() if by == table)
        return tuple(kind(key, requests, drafts, 3 * drafts, accepted) for key, (requests, drafts, accepted) in found)

    def finish(self, temperature=0, **changes):
        self.server.state.plugin.heard(self.connection, finished(temperature, self.server.at, **changes))

    def close(self):
        self.server.state.plugin.heard(self.connection, None)


def _temperature(name, requests, drafts, accepted):
    spread = (drafts, drafts, drafts), (drafts, max(accepted - drafts, 0), 0)
    return TemperatureTotals(name, Endings(requests, 0, 0, 0), drafts, 3 * drafts, accepted, *spread)


def finished(temperature=0, at=1000.0, **changes):
    """A request of 31 tokens in two seconds, half a second after it arrived, that accepted 20 of 30."""
    values = {
        "temperature": temperature,
        "drafts": 10,
        "draft_tokens": 30,
        "accepted_tokens": 20,
        "lengths": (0, 0, 10, 0),
        "prompt_tokens": 100,
        "cached_tokens": None,
        "output_tokens": 31,
        "arrival": at - 2.5,
        "first_token": at - 2.0,
        "last_token": at,
        "outcome": Outcome.STOPPED,
    }
    return FinishedRequest(**(values | changes))
