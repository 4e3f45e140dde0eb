"""From vLLM's pages to verdicts by speedup.

Where the page does not time steps, the times are the plug-in's.
"""

from dataclasses import replace

import pytest

from sidecar.analysis.advice import Advice
from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.judgement import Basis, Verdict
from sidecar.analysis.speed.withheld import Withheld
from sidecar.engine.names import Counter
from sidecar.requests.messages import Speculation
from sidecar.settings.baselines import PlainStepTimes
from tests.analysis.analysis_tools import PluginEnd, Server
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

    Of these tokens, ``accepted`` (0 to 1) are accepted.
    """

    k = 3

    def __init__(self, speculating=True, **settings):
        super().__init__(**{"plain_steps": PLAIN, "thresholds": GATES} | settings)
        self.engine = Engine(speculating=speculating, at=self.at)
        self.poll(self.engine.polls[-1])

    def decode(
        self,
        polls,
        *,
        accepted=0.5,
        step_seconds=0.025,
        per_token=False,
        plugin=None,
        every=1,
        running=4,
        **options,
    ):
        for second in range(polls):
            drafted = self.k if Counter.DRAFTS in self.engine.counters else 0
            length = 1 + drafted * accepted
            self.engine.run(running, step_seconds, length=length, drafted=drafted)
            if drafted:
                self.engine.counters[Counter.ACCEPTED_TOKENS] = (
                    self.engine.counters[Counter.DRAFT_TOKENS] * accepted
                )
            self.engine.counters[Counter.FIRST_TOKENS] += 1
            self.engine.counters[Counter.TTFT_SECONDS] += 0.3
            self.engine.counters[Counter.GENERATION_TOKENS] += 1
            counters = dict(self.engine.counters)
            if per_token:
                tokens = counters[Counter.GENERATION_TOKENS] - counters[Counter.FIRST_TOKENS]
                counters[Counter.DECODE_STEPS] = tokens
            if plugin is not None and (second + 1) % every == 0:
                self.report_by(plugin, second, step_seconds, length, running)
            self.poll(replace(self.engine.polls[-1], counters=counters), **options)
        return self

    def report_by(self, plugin, second, step_seconds, length, running):
        """Reports the same as the plug-in counts it, and one request that ended."""
        steps = round((second + 1) / step_seconds)
        seconds = (second + 1.0) * running
        drafts, accepted = (
            running * steps - plugin.total.drafts,
            round(running * steps * (length - 1)),
        )
        plugin.serve(80, drafts=drafts, accepted=accepted - plugin.total.accepted_tokens)
        counts = {"decodes": running * steps, "request_seconds": seconds}
        plugin.tick(
            steps=[(2, {"steps": steps, "tokens": round(running * steps * length), **counts})]
        )
        end = self.at + 0.4
        tokens = round(length / step_seconds)
        plugin.finish(
            80, arrival=end - 1.1, first_token=end - 1.0, last_token=end, output_tokens=tokens + 1
        )


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
    server = Decoding()
    server.decode(120, accepted=accepted, step_seconds=step_seconds, plugin=PluginEnd(server))
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
    server = Decoding()
    server.decode(120, accepted=0.35, plugin=PluginEnd(server))
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
    # The first poll accepted something, but too little to trust the page's steps by.
    assert (load.seconds, load.tokens) == pytest.approx((4 * 120, 4 * 120 / 0.025 * 2.05))
    assert {load.running: load.plain_seconds for load in server.model().loads} == dict.fromkeys(
        ("1", "2", "3-4", "5-8", "9-16"), pytest.approx(0.02)
    )


def test_first_tokens_and_throughput_stand_beside_plain_decoding_at_the_same_load():
    """The reference is read at the mean load that there was, not in the middle of its label."""
    plain = replace(PLAIN["m"], seconds=(0.02, 0.05), first_token_seconds=(0.1, 0.25))
    server = Decoding(plain_steps={"m": plain}).decode(20)
    (load,) = [load for load in server.model().loads if load.steps]
    assert (load.first_token_seconds, load.plain_first_token_seconds) == pytest.approx(
        (0.3, 0.13), rel=0.01
    )
    # With 4.025 requests, of which 4.02 decode, not the 3.5 in the middle of the label.
    assert load.plain_seconds == pytest.approx(0.02603, rel=1e-4)
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
    server = Decoding()
    plugin = PluginEnd(server, speculation=Speculation("eagle", 3, per_batch_size=True))
    server.decode(30, accepted=0.5, step_seconds=0.025, running=2, plugin=plugin)
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
    server = Decoding(plain_steps=baseline)
    server.decode(120, accepted=0.35, plugin=PluginEnd(server))
    model = server.model()
    assert (model.judgement.verdict, model.judgement.basis) == (
        Verdict.NET_NEGATIVE,
        Basis.ACCEPTANCE,
    )
    assert (model.speed.speedup, model.speed.withheld) == (None, withheld)
    assert {(row.saved_seconds, row.lost_seconds) for row in model.temperatures} == {(None, None)}


def test_while_polls_fail_there_is_no_speedup_and_its_counters_stay():
    """A speedup is of now, and a counter is of all time."""
    server = Decoding()
    server.decode(120, accepted=0.35, plugin=PluginEnd(server))
    before = server.engines()[KEY].loads
    server.fail()
    hot = server.temperature("0.7-1")
    assert server.model().speed is server.engines()[KEY].speed is hot.speedup is None
    assert server.engines()[KEY].loads == before
    assert any(load.plain_seconds for load in server.model().loads)
    assert hot.saved_seconds > 0


def test_decoding_is_counted_by_load_on_plain_pods_too():
    """Prometheus compares the pods that speculate with them."""
    server = Decoding(speculating=False)
    server.decode(10, step_seconds=0.05)
    server.decode(10, running=1, step_seconds=0.02)
    loads = {load.running: load for load in server.engines()[KEY].loads}
    assert loads["3-4"].seconds == pytest.approx(40)
    assert loads["1"].seconds / loads["1"].steps == pytest.approx(0.02)
    assert loads["257+"].steps == 0
    assert server.model().speed is None


@pytest.mark.parametrize(
    ("page", "withheld"),
    [
        ({"start": None}, Withheld.NO_STEPS),  # several API servers count a step several times
        ({"per_token": True}, Withheld.ITL_PER_TOKEN),  # vLLM's sum ÷ count is 2.5 times too small
    ],
)
def test_where_the_page_does_not_time_steps_the_plugin_does(page, withheld):
    """Also where it reports only with every fourth poll."""
    without, observed = Decoding(), Decoding()
    without.decode(60, **page)
    assert (without.model().speed.speedup, without.model().speed.withheld) == (None, withheld)
    assert without.engines()[KEY].loads == ()
    observed.decode(60, **page, plugin=PluginEnd(observed))
    assert observed.model().speed.speedup.ratio == pytest.approx(2.5 * 0.02 / 0.025, rel=0.01)
    (load,) = [load for load in observed.model().loads if load.steps]
    assert load.first_token_seconds == pytest.approx(0.3)
    seldom = Decoding()
    seldom.decode(60, **page, plugin=PluginEnd(seldom), every=4)
    assert seldom.model().speed.steps.drafted_share == pytest.approx(1), (
        "of all drafts since the last report"
    )
    for server in (without, observed):
        limitations = server.engines()[KEY].limitations
        assert (Limitation.ITL_PER_TOKEN in limitations) == (withheld is Withheld.ITL_PER_TOKEN)


@pytest.mark.parametrize("accepted", [0.0, 0.05, 0.9])
def test_inter_token_latency_by_step_is_never_taken_for_one_by_token(accepted):
    """At any acceptance rate, down to 0, where both are alike."""
    server = Decoding().decode(60, accepted=accepted)
    assert Limitation.ITL_PER_TOKEN not in server.engines()[KEY].limitations
    expected = (1 + 3 * accepted) * 0.02 / 0.025
    assert server.model().speed.speedup.ratio == pytest.approx(expected, rel=0.01)


def test_a_vllm_without_step_times_is_told_from_an_idle_one():
    """An idle one will have a speedup, and the other never will."""
    assert Decoding().model().speed.withheld is Withheld.TOO_LITTLE
    old = Decoding()
    del old.engine.counters[Counter.DECODE_SECONDS]
    assert old.decode(3).model().speed.withheld is Withheld.NO_STEPS


def test_adaptive_verification_leaves_no_break_even_acceptance():
    """vLLM's acceptance rate is over drafts that it may not have verified."""
    server = Decoding()
    adaptive = Speculation("eagle", 3, adaptive_verification=True)
    server.decode(60, plugin=PluginEnd(server, speculation=adaptive))
    assert server.engines()[KEY].speed.speedup is not None
    assert server.engines()[KEY].speed.break_even_acceptance is None
