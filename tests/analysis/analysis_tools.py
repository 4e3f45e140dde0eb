"""Shorthand for a server's polls."""

import math

from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.target_state import TargetState
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, PageSnapshot
from sidecar.engine.version import VersionFamily
from sidecar.errors import TimedOut

EDGES = (0.1, 1.0, math.inf)


def snap(engine="0", drafts=0, *, usage=0.5, model="m", traits=(), accepted=None, **more):
    counters = {Counter.DRAFTS: drafts, Counter.DRAFT_TOKENS: 3 * drafts, Counter.ACCEPTED_TOKENS: 2 * drafts}
    if accepted is not None:
        counters[Counter.ACCEPTED_TOKENS] = accepted
    return EngineSnapshot(
        EngineKey(model, engine),
        more.get("counters", {key: float(value) for key, value in counters.items()}),
        (float(drafts),),
        {Gauge.KV_CACHE_USAGE: usage, Gauge.REQUESTS_RUNNING: 1.0},
        {Phase.TTFT: HistogramReading(EDGES, (float(drafts), float(drafts), float(drafts)))},
        1600,
        frozenset(traits),
    )


def page(*engines, start=1.0, version=VersionFamily.V1_32, malformed=0):
    return PageSnapshot(engines, version, start, malformed)


class Server:
    """A target's state, polled every second from ``at`` on."""

    def __init__(self, at=1000.0, max_engines=8, **windows):
        self.state = TargetState("t", Lookback(**windows), interval=1.0, max_engines=max_engines)
        self.at = at

    def poll(self, *engines, seconds=1.0, **options):
        self.at += seconds
        self.state.scraped(self.at, 0.005, 1.0, page(*engines, **options))
        return self.report()

    def fail(self, error=None):
        self.at += 1
        self.state.failed(self.at, error or TimedOut("x"))
        return self.report()

    def report(self, later=0.0):
        return self.state.report(self.at + later)

    def drafts(self):
        return {e.key.engine: e.counters[Counter.DRAFTS] for e in self.report().engines}
