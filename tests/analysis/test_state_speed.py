"""From vLLM's pages and its plug-in's steps to verdicts by speedup."""

from dataclasses import asdict, replace

import pytest

from sidecar.analysis.advice import Advice
from sidecar.analysis.judgement import Basis, Verdict
from sidecar.analysis.speed.withheld import Withheld
from sidecar.engine.names import Counter
from sidecar.requests.messages import Configuration, Speculation, StepTally
from sidecar.settings.baselines import PlainCache, PlainStepTimes
from tests.analysis.analysis_tools import EAGLE, PluginEnd, Server
from tests.analysis.decoding import KEY, Engine

PLAIN = {
    "m": PlainStepTimes(
        running=(1.0, 16.0),
        seconds=(0.02, 0.02),
        context=100.0,
        contexts=(1.0, 2000.0),
        context_seconds=(0.0, 0.0),
        drift=0.005,
    )
}
GATES = {"min_requests": 1}


class Decoding(Server):
    """A vLLM whose engine decodes with four requests and ``k`` draft tokens a step.

    Of these tokens, ``accepted`` (0 to 1) are accepted. Its plug-in, if it has one, says how it
    speculates.
    """

    k = 3

    def __init__(self, speculation=EAGLE, *, has_plugin=True, **settings):
        super().__init__(**{"plain_steps": PLAIN, "thresholds": GATES} | settings)
        self.engine = Engine(speculating=speculation is not None, at=self.at)
        self.plugin = PluginEnd(self, speculation=speculation) if has_plugin else None
        self.told = {}  # by the number of requests that decode
        self.drafted = self.accepted = 0.0
        self.poll(self.engine.polls[-1])

    def decode(self, polls, *, accepted=0.5, step_seconds=0.025, every=1, running=4, **options):
        """The plug-in reports with ``every`` so many polls."""
        for second in range(polls):
            k = self.k if Counter.DRAFTS in self.engine.counters else 0
            length = 1 + k * accepted
            self.engine.run(running, step_seconds, length=length, drafted=k)
            if k:
                self.drafted += running / step_seconds
                self.accepted += running / step_seconds * k * accepted
                self.engine.counters[Counter.ACCEPTED_TOKENS] = self.accepted
            self.engine.counters[Counter.FIRST_TOKENS] += 1
            self.engine.counters[Counter.TTFT_SECONDS] += 0.3
            self.engine.counters[Counter.GENERATION_TOKENS] += 1
            before = self.told.get(running, StepTally())
            self.told[running] = before + self.engine.told.decoding
            if self.plugin is not None and (second + 1) % every == 0:
                self.report_by(step_seconds, length)
            snapshot = replace(self.engine.polls[-1], counters=dict(self.engine.counters))
            self.poll(snapshot, **options)
        return self

    def report_by(self, step_seconds, length):
        """Reports the same as the plug-in counts it, and one request that ended."""
        plugin = self.plugin
        drafts = round(self.drafted) - plugin.total.drafts
        accepted = round(self.accepted) - plugin.total.accepted_tokens
        plugin.serve(80, drafts=drafts, accepted=accepted)
        plugin.generated = round(self.engine.counters[Counter.GENERATION_TOKENS])
        plugin.tick(steps=[(decodes, asdict(steps)) for decodes, steps in self.told.items()])
        if not self.drafted:
            return
        end = self.at + 0.4
        tokens = round(length / step_seconds)
        generated = plugin.generated
        plugin.finish(
            80,
            arrival=end - 1.1,
            first_token=end - 1.0,
            last_token=end,
            output_tokens=tokens + 1,
        )
        plugin.generated = generated  # it has been counted


@pytest.mark.parametrize(
    ("accepted", "step_seconds", "verdict", "by_acceptance"),
    [
        # Accepts little, and is 1.64 times faster.
        (0.35, 0.025, Verdict.NET_POSITIVE, Verdict.NET_NEGATIVE),
        (0.7, 0.1, Verdict.NET_NEGATIVE, Verdict.NET_POSITIVE),  # accepts much, and is slower
        # Is as fast: two minutes cannot tell that for certain.
        (0.58, 0.0548, Verdict.INSUFFICIENT_DATA, Verdict.BREAK_EVEN),
    ],
)
def test_the_measured_speedup_decides_not_the_acceptance(
    accepted, step_seconds, verdict, by_acceptance
):
    """For the model and for each temperature; the time saved or lost follows from it."""
    server = Decoding().decode(120, accepted=accepted, step_seconds=step_seconds)
    for judged in (server.model().judgement, server.temperature("0.7-1").judgement):
        assert (judged.verdict, judged.basis, judged.by_acceptance) == (
            verdict,
            Basis.SPEEDUP,
            by_acceptance,
        )
        assert judged.evidence.speedup.ratio == pytest.approx(
            (1 + 3 * accepted) * 0.02 / step_seconds, rel=0.03
        )
    hot, saved = server.temperature("0.7-1"), 118 * ((1 + 3 * accepted) * 0.02 / step_seconds - 1)
    assert (hot.saved_seconds, hot.lost_seconds) == pytest.approx(
        (max(saved, 0), max(-saved, 0)), rel=0.08, abs=2
    )


def test_the_report_has_speedup_loads_and_time_saved():
    """From polls of a page and reports alone, as in production."""
    server = Decoding().decode(120, accepted=0.35)
    engine, cold, hot = server.engines()[KEY], server.temperature("0"), server.temperature("0.7-1")
    speed = engine.speed
    # Of each request's tokens, the first is the only one of its step.
    assert (speed.speedup.ratio, speed.speedup.actual_seconds) == pytest.approx(
        (1.64, 0.025 / 2.05), rel=0.01
    )
    assert (speed.break_even_length, speed.break_even_acceptance) == pytest.approx(
        (1.25, 0.25 / 3), rel=0.02
    )
    assert (speed.costs.actual, speed.costs.plain, speed.costs.drafted) == pytest.approx(
        (0.025, 0.02, 3), rel=0.01
    )
    assert (hot.speedup.ratio, cold.saved_seconds) == (pytest.approx(1.64, rel=0.02), 0)
    (load,) = [load for load in engine.loads if load.steps]
    assert load.running == "3-4"
    assert (load.seconds, load.tokens) == pytest.approx((4 * 120, 4 * 120 / 0.025 * 2.05))
    assert {
        load.running: load.plain_tpot_seconds for load in server.model().loads
    } == dict.fromkeys(("1", "2", "3-4", "5-8", "9-16"), pytest.approx(0.02))


def test_first_tokens_and_throughput_stand_beside_plain_decoding_at_the_same_load():
    """The reference is read at the mean load that there was, not in the middle of its label."""
    plain = replace(PLAIN["m"], seconds=(0.02, 0.05), first_token_seconds=(0.1, 0.25))
    server = Decoding(plain_steps={"m": plain}).decode(20)
    (load,) = [load for load in server.model().loads if load.steps]
    assert (load.first_token_seconds, load.plain_first_token_seconds) == pytest.approx(
        (0.3, 0.13), rel=0.01
    )
    # With 4.025 requests, of which 4.02 decode, not the 3.5 in the middle of the label.
    assert load.plain_tpot_seconds == pytest.approx(0.02603, rel=1e-4)
    # Four requests get 2.5 tokens from each of 40 steps a second, and one gets its first.
    assert (load.tokens_per_second, load.plain_tokens_per_second) == pytest.approx(
        (401, 4.025 / 0.02603), rel=1e-3
    )


def test_times_by_load_start_again_with_vllm_which_may_now_speculate_in_another_way():
    """They are counters of the process, like its own."""
    server = Decoding().decode(10)
    server.poll(
        replace(server.engine.polls[-1], counters=dict.fromkeys(server.engine.counters, 0.0)),
        start=2.0,
    )
    assert not any(load.steps for load in server.model().loads)


def test_where_drafting_pays_only_at_light_load_the_advice_is_a_schedule():
    """With the loads that were measured, and 0 draft tokens where drafting loses.

    Not at once: about 5 requests run on average, near the 3 from which on it does.
    """
    server = Decoding(Speculation("eagle", 3, per_batch_size=True))
    server.decode(30, accepted=0.5, step_seconds=0.025, running=2)
    server.decode(20, accepted=0.5, step_seconds=0.1, running=16)
    assert server.model().advice == Advice(
        schedule=((1, 2, 2), (3, 9, 1), (10, 16, 0)), can_schedule=True
    )


def test_each_load_s_costs_are_of_the_drafts_there():
    """The number of draft tokens may follow the load."""
    server = Decoding()
    server.decode(20, running=2)
    server.k = 1
    server.decode(20, running=16)
    costs = server.model().judgement.evidence.costs_by_load
    assert {load: one.drafted for load, one in costs.items()} == {2: 3, 16: 1}


@pytest.mark.parametrize(
    ("baseline", "withheld"),
    [({}, Withheld.NO_REFERENCE), ({"other": PLAIN["m"]}, Withheld.OTHER_MODEL)],
)
def test_without_a_baseline_of_the_model_the_rule_of_thumb_decides(baseline, withheld):
    """Time saved and lost are unknown then, not 0."""
    server = Decoding(plain_steps=baseline).decode(120, accepted=0.35)
    model = server.model()
    assert (model.judgement.verdict, model.judgement.basis) == (
        Verdict.NET_NEGATIVE,
        Basis.ACCEPTANCE,
    )
    assert (model.speed.speedup, model.speed.withheld) == (None, withheld)
    assert {(row.saved_seconds, row.lost_seconds) for row in model.temperatures} == {(None, None)}


@pytest.mark.parametrize(
    ("measured_on", "runs_on", "withheld"),
    [
        ("NVIDIA A100", "NVIDIA H100", Withheld.OTHER_ACCELERATOR),
        ("NVIDIA H100", "NVIDIA H100", None),
        (None, "NVIDIA H100", None),  # nobody knows
        ("NVIDIA A100", None, None),
    ],
)
def test_a_baseline_of_another_accelerator_is_no_reference(measured_on, runs_on, withheld):
    """Its steps, latencies and cache say nothing of this one, and would page someone."""
    server = Decoding(
        plain_steps={"m": replace(PLAIN["m"], accelerator=measured_on)},
        plain_cache={"m": PlainCache(capacity_tokens=1000)},
        baseline={"m": {"tpot": {"p50": 0.02}}},
    )
    server.plugin.hello(configuration=Configuration(accelerator=runs_on))
    model = server.decode(120, accepted=0.7, step_seconds=0.1).model()
    by = Basis.ACCEPTANCE if withheld else Basis.SPEEDUP
    assert (model.judgement.basis, model.speed.withheld) == (by, withheld)
    assert (model.judgement.verdict is Verdict.NET_NEGATIVE) == (withheld is None)
    kept = (model.plain_steps, model.plain_cache, model.plain_latencies)
    assert [bool(one) for one in kept] == [withheld is None] * 3
    assert any(load.plain_tpot_seconds for load in model.loads) == (withheld is None)


def test_while_polls_fail_there_is_no_speedup_and_its_counters_stay():
    """A speedup is of now, and a counter is of all time."""
    server = Decoding().decode(120, accepted=0.35)
    before = server.engines()[KEY].loads
    server.fail()
    hot = server.temperature("0.7-1")
    assert server.model().speed is server.engines()[KEY].speed is hot.speedup is None
    assert server.engines()[KEY].loads == before
    assert any(load.plain_tpot_seconds for load in server.model().loads)
    assert hot.saved_seconds > 0


def test_decoding_is_counted_by_load_on_plain_pods_too():
    """Prometheus compares the pods that speculate with them."""
    server = Decoding(None)
    server.decode(10, step_seconds=0.05)
    server.decode(10, running=1, step_seconds=0.02)
    loads = {load.running: load for load in server.engines()[KEY].loads}
    assert loads["3-4"].seconds == pytest.approx(40)
    assert loads["1"].seconds / loads["1"].steps == pytest.approx(0.02)
    assert loads["257+"].steps == 0
    assert server.model().speed is None


@pytest.mark.parametrize("speculation", [EAGLE, None])
def test_without_a_plugin_there_is_acceptance_and_the_rule_of_thumb(speculation):
    """A page does not time steps: no speedup, and no counters of them that would stay at 0."""
    server = Decoding(speculation, has_plugin=False).decode(120, accepted=0.2)
    model = server.model()
    assert server.engines()[KEY].loads == ()
    assert model.contexts == {}
    if speculation is None:
        assert model.speed is None
    else:
        assert (model.speed.speedup, model.speed.withheld) == (None, Withheld.NO_STEPS)
        assert (model.judgement.by_acceptance, model.judgement.basis) == (
            Verdict.NET_NEGATIVE,
            Basis.ACCEPTANCE,
        )


def test_a_plugin_that_reports_seldom_tells_all_since_its_last_report():
    seldom = Decoding().decode(60, every=4)
    speed = seldom.model().speed
    assert speed.speedup.ratio == pytest.approx(2.5 * 0.02 / 0.025, rel=0.01)
    assert speed.steps.drafted_share == pytest.approx(1)
    (load,) = [load for load in seldom.model().loads if load.steps]
    assert load.first_token_seconds == pytest.approx(0.3)


def test_steps_come_from_the_plugin_where_the_page_is_a_sum_over_several_servers_too():
    server = Decoding().decode(60, start=None)
    assert server.model().speed.speedup.ratio == pytest.approx(2.5 * 0.02 / 0.025, rel=0.01)


def test_what_vllm_counted_before_its_plugin_came_is_of_no_steps():
    """Such as an hour of prompts, which would make the first second's steps look full of them."""
    server = Decoding(has_plugin=False).decode(60)
    server.plugin = PluginEnd(server)
    server.plugin.tick()
    server.decode(5)
    (load,) = [load for load in server.model().loads if load.steps]
    assert load.running == "3-4"
    assert load.first_token_seconds == pytest.approx(0.3)
    assert server.model().speed.steps.first_tokens == pytest.approx(5, abs=1)


def test_a_prefill_longer_than_polls_counts_once_a_request_decodes():
    """Its steps come with no decoding, so they belong to the next ones with any."""
    server = Decoding().decode(30)
    before = server.model().speed.steps.engine_seconds
    prefill = StepTally(steps=10, seconds=4.0)
    server.told[0] = prefill
    server.decode(3)
    assert server.model().speed.steps.engine_seconds == pytest.approx(before + 3 + 4)


def test_a_vllm_whose_plugin_counts_is_told_from_one_without():
    """An idle one will have a speedup, and the other never will."""
    idle = Decoding()
    idle.plugin.tick()
    idle.poll(idle.engine.polls[-1])
    assert idle.model().speed.withheld is Withheld.TOO_LITTLE
    assert Decoding(has_plugin=False).model().speed.withheld is Withheld.NO_STEPS


def test_adaptive_verification_leaves_no_break_even_acceptance():
    """vLLM's acceptance rate is over drafts that it may not have verified."""
    server = Decoding(Speculation("eagle", 3, adaptive_verification=True)).decode(60)
    assert server.engines()[KEY].speed.speedup is not None
    assert server.engines()[KEY].speed.break_even_acceptance is None
