"""A state with two engines, as the exporter gets it."""

import math

import pytest

from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.target_state import TargetState
from sidecar.engine.names import Counter, Gauge, Phase, Trait
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, PageSnapshot
from sidecar.engine.version import VersionFamily
from sidecar.errors import TimedOut
from sidecar.export.collector import ExportOptions

EDGES = (0.01, 0.1, 1.0, 10.0, math.inf)
MODEL = 'org/Model "7B" <b>&\\'


def speculating(polls, model=MODEL):
    counts = tuple(float(polls * share) for share in (1, 5, 9, 10, 10))
    return EngineSnapshot(
        EngineKey(model, "0"),
        {counter: float(100 * polls + place) for place, counter in enumerate(Counter)}
        | {Counter.DRAFTS: 100.0 * polls, Counter.DRAFT_TOKENS: 300.0 * polls, Counter.ACCEPTED_TOKENS: 180.0 * polls},
        (90.0 * polls, 60.0 * polls, 30.0 * polls),
        {Gauge.REQUESTS_RUNNING: 4.0, Gauge.REQUESTS_WAITING: 0.0, Gauge.KV_CACHE_USAGE: 0.125 * polls},
        dict.fromkeys(Phase, HistogramReading(EDGES, counts)),
        442_368,
    )


def old(polls):
    return EngineSnapshot(
        EngineKey("old", "1"),
        {Counter.GENERATION_TOKENS: 1e6 * polls, Counter.PROMPT_TOKENS: 0.0},
        (),
        {Gauge.LIFETIME_ACCEPTANCE: 0.75},
        {},
        None,
        frozenset({Trait.OVERCOUNTED}),
    )


@pytest.fixture
def state():
    """One server after three polls and a failure in between: one engine that exports everything, one of V0."""
    target = TargetState("west", Lookback(), interval=1.0, max_engines=8, max_positions=2)
    for polls in (1, 2, 3):
        page = PageSnapshot((speculating(polls), old(polls)), VersionFamily.V1_32, 17.0, malformed=polls - 1)
        target.scraped(1_700_000_000.0 + polls, 0.0078125, 1.0, page)
        if polls == 1:
            target.failed(1_700_000_001.5, TimedOut("incomplete after 5 s"))
    return target


@pytest.fixture
def export_options():
    return ExportOptions(
        thresholds={"acceptance_net_negative": 0.5, "min_requests": 20.0},
        baselines={MODEL: {"ttft": {0.5: 0.05, 0.99: 1.25}}},
        max_positions=2,
    )
