"""A real vLLM's pages, and the same if its inter-token latency had one observation a token."""

from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.analysis.limitation import Limitation
from sidecar.analysis.speedup import Withheld
from sidecar.analysis.state import State
from sidecar.engine.names import Counter
from sidecar.recording.recording import read_scrapes
from sidecar.recording.replay import plain_curves
from sidecar.settings import Settings
from sidecar.settings.baselines import PlainStepTimes

LEVELS = Path(__file__).parents[1] / "data" / "levels"


def by_token(engine):
    """The change that vLLM's pull request 47382 describes."""
    tokens = engine.counters[Counter.GENERATION_TOKENS] - engine.counters[Counter.FIRST_TOKENS]
    return replace(engine, counters={**engine.counters, Counter.DECODE_STEPS: tokens})


@pytest.fixture(scope="module")
def settings():
    curve = plain_curves(read_scrapes(LEVELS / "plain"))["lab"]
    steps = PlainStepTimes(running=curve.running, seconds=curve.seconds, errors=curve.errors)
    return Settings(plain_steps={"lab": steps}, latency_window=3600, history=3600)


def engine_of(settings, change):
    state, at = State(settings, 0.0), 0.0
    for scrape in read_scrapes(LEVELS / "k3"):
        if scrape.snapshot is not None:
            at = scrape.at
            engines = tuple(map(change, scrape.snapshot.engines))
            state.scraped(at, 0.005, 1.0, replace(scrape.snapshot, engines=engines))
    (engine,) = state.report(at).models[0].engines
    return engine


def test_a_page_by_step_gives_its_speedup(settings):
    engine = engine_of(settings, lambda engine: engine)
    assert Limitation.ITL_PER_TOKEN not in engine.limitations
    assert engine.speed.withheld is not Withheld.ITL_PER_TOKEN
    assert sum(load.steps for load in engine.loads) > 1000


def test_a_page_by_token_gives_none_and_says_so(settings):
    engine = engine_of(settings, by_token)
    assert Limitation.ITL_PER_TOKEN in engine.limitations
    assert (engine.speed.speedup, engine.speed.withheld) == (None, Withheld.ITL_PER_TOKEN)
    assert not any(load.steps for load in engine.loads)
