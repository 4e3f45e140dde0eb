"""vLLM's Rust frontend: what its page does not say, and what is made of it all the same."""

from dataclasses import replace

import pytest

from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.engine.health import Ailment
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import SPECULATION, Counter, Gauge, Trait
from sidecar.engine.snapshot import PageSnapshot
from sidecar.wording.answer import answer
from tests.analysis.analysis_tools import PluginEnd, Server, snap

KEY = EngineKey("m", "0")
REQUEST = 100  # steps of a request


def rust(*, steps, accepted=2, running=4.0):
    """An engine whose requests have made ``steps`` steps, each with a draft of three tokens.

    With ``accepted`` None it drafts nothing.
    """
    drafts = 0 if accepted is None else steps
    counters = {
        Counter.FIRST_TOKENS: float(steps // REQUEST),
        Counter.GENERATION_TOKENS: float(steps // REQUEST + steps + (accepted or 0) * drafts),
        Counter.PROMPT_TOKENS: 1.0 * (steps // REQUEST),
    }
    if drafts:
        counters |= {
            Counter.DRAFTS: float(drafts),
            Counter.DRAFT_TOKENS: 3.0 * drafts,
            Counter.ACCEPTED_TOKENS: 2.0 * drafts,
        }
    engine = snap(counters=counters, traits=[Trait.RUST_FRONTEND])
    return replace(
        engine,
        gauges={Gauge.REQUESTS_RUNNING: running, Gauge.KV_CACHE_USAGE: 0.5},
        accepted_per_position=(float(drafts),) if drafts else (),
        kv_cache_capacity_tokens=None,
    )


class Rust(Server):
    """A vLLM behind the Rust frontend; four requests make 100 steps a second together."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.steps = 0

    def poll_page(self, *engines, seconds=1.0):
        self.at += seconds
        page = PageSnapshot(engines, None, 0, is_rust=True)
        self.sink.scraped(self.at, 0.005, 1.0, page)
        return self.report()

    def run(self, seconds, *, moves=True, **more):
        for _ in range(seconds):
            self.steps += 100 * moves
            self.poll_page(rust(steps=self.steps, **more))


def test_its_zeros_are_no_speculation_until_something_is_drafted():
    server = Rust()
    server.run(5, accepted=None)
    model = server.model()
    assert model.checklist is not None
    assert model.speed is None
    assert server.engines()[KEY].limitations >= {
        Limitation.NOTHING_DRAFTED,
        Limitation.RUST_FRONTEND,
    }
    assert answer(server.report()).text == "This vLLM is not known to speculate."

    server.run(10)
    model = server.model()
    assert model.checklist is None
    assert model.judgement.evidence.window.rate == pytest.approx(2 / 3)
    # also what it drafted before the poll that saw it first
    assert model.judgement.evidence.window.drafts == server.engines()[KEY].counters[Counter.DRAFTS]


def test_the_hello_says_that_it_speculates_before_anything_is_drafted():
    server = Rust()
    PluginEnd(server, started=server.at)
    server.run(3, accepted=None)
    assert server.model().checklist is None
    assert server.engines()[KEY].counters.items() >= dict.fromkeys(SPECULATION, 0.0).items()
    assert not server.engines()[KEY].limitations & {
        Limitation.NOTHING_DRAFTED,
        Limitation.NO_POSITIONS,
    }


def test_a_hello_without_speculation_leaves_it_a_plain_one():
    server = Rust()
    PluginEnd(server, started=server.at, speculation=None)
    server.run(3, accepted=None)
    assert server.model().checklist is not None


def test_it_is_one_process_whose_stall_is_seen():
    """It is told from several API servers, whose page also lacks a start time."""
    server = Rust(engine_health={"stalled_after": 20.0})
    server.run(30)
    assert Limitation.SEVERAL_PROCESSES not in server.engines()[KEY].limitations
    assert server.report().health.ailments == {(*KEY, Ailment.STALLED): False}

    for _ in range(40):
        server.run(1, moves=False)
        server.state.health.answered(server.at, is_paused=False)
    assert server.report().health.ailments == {(*KEY, Ailment.STALLED): True}


def test_before_the_first_statistics_vllm_is_up_and_has_counted_nothing():
    server = Rust()
    report = server.poll_page()
    assert report.scrape.up
    assert report.models == ()
    assert answer(report).text == "vLLM has counted nothing yet."

    server.run(3)
    assert server.model().model_name == "m"
