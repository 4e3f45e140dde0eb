"""Speed: steps as the plug-in tells them, and speedup over the sliding window with honest errors.

One model's speed is checked poll by poll.
"""

from dataclasses import replace

import pytest

from sidecar.analysis.speed.model_speed import ModelSpeed
from sidecar.analysis.speed.plain import plain_token, uncovered
from sidecar.analysis.speed.scatter import RequestSpread
from sidecar.analysis.speed.speedup import (
    ContextSpeed,
    EngineSpeed,
    EngineSpeedWindow,
    LastKnown,
    LoadTotals,
    SlidingTimes,
    Speedup,
    context_label,
    inexact_baseline,
)
from sidecar.analysis.speed.steps import LOAD_LABELS, Prefill, Steps, load_label, reported_steps
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.split.life import NO_STEPS, LifeSteps
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Counter
from sidecar.requests.messages import StepTally
from sidecar.settings.baselines import PlainStepTimes
from tests.analysis.analysis_tools import finished
from tests.analysis.decoding import KEY, Engine, period, plain, told


@pytest.mark.parametrize("tokens", [2, 60])
def test_one_request_at_a_time_is_a_load_of_one_however_short_its_reply(tokens):
    """The step that ends a prefill gives the first token and is no decode step.

    It is an engine step all the same.
    """
    decoded = tokens - 1.0
    steps = Steps(
        seconds=1.0,
        decode_steps=decoded,
        engine_steps=float(tokens),
        tokens=decoded,
        first_tokens=1.0,
    )
    assert (steps.running, steps.tokens_per_step) == (1, 1)


def test_prompt_tokens_from_the_prefix_cache_cost_nothing():
    """Only those that were computed count as prefill."""
    engine = Engine()
    engine.counters[Counter.PREFIX_CACHE_HITS] = 0.0
    engine.run(1, 0.05)
    engine.counters[Counter.PREFIX_CACHE_HITS] += 30
    engine.run(1, 0.05, prompt_share=2)
    assert engine.steps.prompt_tokens == pytest.approx(10)


@pytest.mark.parametrize(
    ("requests", "hits", "drops", "computed"),
    [
        (0, 0, 1.0, 40),
        (1, 0, 1.0, 40),  # without a hit there is no block to drop
        (1, 160, 1.0, 24),
        (1, 160, 0.5, 32),  # nobody knows whether this vLLM drops any
        (1, 160, 0.0, 40),
        (3, 160, 1.0, 0),
    ],
)
def test_blocks_that_only_speculation_computes_again_are_not_plain_decoding_s(
    requests, hits, drops, computed
):
    """EAGLE drops the last block of each hit; plain decoding would have had it from the cache."""
    grown = {
        Counter.FIRST_TOKENS: requests,
        Counter.PROMPT_TOKENS: 40.0 + hits,
        Counter.PREFIX_CACHE_HITS: hits,
    }
    steps = reported_steps(told(period(1, 0.01)), grown, Prefill(block=16, drops_block=drops))
    assert steps.plain_prompt_tokens == pytest.approx(computed)


def serving(first, *, decoding=100, running=1, prefilling=0, **prefill):
    """Steps of 10 ms with ``running`` requests in each, in which so many got their first token.

    Half a second long steps of prefill alone come on top.
    """
    seconds = 0.01 * decoding
    counted = LifeSteps(
        StepTally(
            steps=decoding,
            seconds=seconds,
            decodes=running * decoding,
            request_seconds=running * seconds,
            tokens=running * decoding,
        ),
        StepTally(steps=prefilling, seconds=0.5 * prefilling),
    )
    return reported_steps(counted, {Counter.FIRST_TOKENS: float(first)}, Prefill(**prefill))


@pytest.mark.parametrize("chunks", [1, 5])
def test_one_request_at_a_time_decodes_nothing_while_it_prefills(chunks):
    """The time of its prefill counts, in one step or in several, and it is a load of one."""
    steps = serving(4, prefilling=4 * chunks)
    assert steps.engine_seconds == pytest.approx(1.0 + 4 * chunks * 0.5)
    assert steps.running == 1
    assert steps.step_seconds == pytest.approx(0.01)


def test_prefill_beside_others_is_in_their_steps():
    """It is not added again: the requests that decode have waited for it already."""
    steps = serving(4, running=8)
    assert steps.engine_seconds == pytest.approx(1.0)
    assert steps.running == pytest.approx(8.04)


@pytest.mark.parametrize(("seconds", "all_prefill"), [(0.5, 2.0), (None, 0.04)])
def test_the_time_in_prefill_is_vllm_s_own_or_about_a_step_s(seconds, all_prefill):
    steps = serving(4, running=8, seconds=seconds, queue_seconds=0.25)
    assert (steps.prefill_seconds, steps.queue_seconds) == pytest.approx((all_prefill, 1.0))


def test_what_requests_hold_is_the_plug_in_s_sample_or_unknown():
    sampled = reported_steps(told(period(4, 0.01, context=700.0)), {})
    assert (sampled.context, serving(1).context) == (700, None)


def test_a_period_without_decoding_has_no_steps():
    """It is None, not a step of no length."""
    engine = Engine()
    engine.run(0, 0.05)
    assert engine.steps is None
    assert serving(1, decoding=0, prefilling=3) is reported_steps(NO_STEPS, {}) is None


def test_a_load_is_labelled_by_the_rounded_number_of_requests():
    """The labels are powers of two and part of the contract."""
    labels = {
        1: "1",
        1.4: "1",
        2: "2",
        2.6: "3-4",
        8: "5-8",
        9: "9-16",
        256: "129-256",
        257: "257+",
        9e9: "257+",
    }
    assert {running: load_label(running) for running in labels} == labels
    assert LOAD_LABELS == (
        "1",
        "2",
        "3-4",
        "5-8",
        "9-16",
        "17-32",
        "33-64",
        "65-128",
        "129-256",
        "257+",
    )


CURVE = PlainStepTimes(
    running=(1.0, 16.0),
    seconds=(0.01, 0.02),
    context=100.0,
    prefill_seconds=0.0,
)


def times(*polls, seconds=300.0, error=0.0):
    """A window after polls of (tokens, actual seconds in all), one each five seconds.

    By plain decoding each token takes 10 ms. Two requests end before each poll.
    """
    window = SlidingTimes(seconds, RequestSpread())
    for at, (tokens, actual) in enumerate(polls):
        window.add(tokens=tokens, plain=plain(0.01, error), actual=actual, requests=2.0)
        window.mark(5.0 * at)
    return window


def test_a_speedup_is_of_no_more_seconds_than_there_were_polls():
    """The page says over how long; it asks for up to an hour, which a young sidecar has not."""
    assert times(*[(100, 0.9)] * 21).read().seconds == 100.0


def speed(*periods, curve=CURVE, seconds=300.0):
    """The speed after these periods, one each five seconds, over a window of ``seconds``."""
    window = EngineSpeedWindow(seconds, RequestSpread())
    for at, steps in enumerate(periods):
        window.add(steps, plain_token(curve, steps) or uncovered(curve, steps))
        window.mark(5.0 * at, is_compared=True)
    return window.read(curve, Withheld.NO_REFERENCE, 5.0 * len(periods))


def decoding(step_seconds, length=2, drafted=3):
    return period(16, step_seconds, length=length, drafted=drafted, prompt_share=1)


def test_tokens_and_times_are_summed_not_averaged():
    """Many slow tokens and few fast ones: the mean of the ratios would be above 1."""
    speedup = times(*[(10, 0.05), (1000, 12.5)] * 10).read()
    assert speedup.ratio == pytest.approx((1000 * 0.01 + 10 * 0.01) / (12.5 + 0.05))
    assert (speedup.actual_seconds, speedup.plain_seconds) == pytest.approx((12.55 / 1010, 0.01))


def test_times_that_have_left_the_window_do_not_count():
    """Uncertain as it is, it is an hour long; once all have left it, there is no speedup at all."""
    window = times(*[(100, 1.0)] * 10, *[(100, 2.0)] * 740)
    assert window.read().ratio == pytest.approx(0.5)
    window.mark(8000.0)
    window.mark(16_000.0)
    assert window.read() is None


def test_too_few_requests_or_tokens_give_no_speedup():
    """The reason is that there is too little, not that there is no reference."""
    assert times(*[(100, 1.0)] * 2).read() is times(*[(0, 0.0)] * 40).read() is None
    assert times(*[(100, 1.0)] * 3).read() is not None
    assert speed() is None
    assert (speed(decoding(0.03)).speedup, speed(decoding(0.03)).withheld) == (
        None,
        Withheld.TOO_LITTLE,
    )


def test_an_error_of_the_reference_is_common_to_all_tokens():
    """So more tokens do not make it any smaller."""
    without, few, many = (
        times(*[(100, 1.0)] * polls, error=error).read().error
        for polls, error in ((60, 0.0), (60, 0.0005), (600, 0.0005))
    )
    assert few**2 - without**2 == pytest.approx(0.05**2)
    assert many > 0.05


@pytest.mark.parametrize(("error", "keeps"), [(0.057, None), (0.056, pytest.approx(0.04))])
def test_a_baseline_keeps_a_speedup_undecided_once_half_of_its_variance_is_the_baseline_s(
    error, keeps
):
    """More traffic makes only the other half smaller."""
    known = Speedup(ratio=1.0, error=error, plain_seconds=0.01, actual_seconds=0.01, tokens=9.0)
    engine = EngineSpeed(steps=decoding(0.02), speedup=known)
    rough = replace(CURVE, drift=0.04)
    assert inexact_baseline(engine, rough) == keeps
    assert inexact_baseline(engine, None) is None
    assert inexact_baseline(replace(engine, speedup=None), rough) is None


def test_with_drafts_in_half_of_the_steps_the_break_even_acceptance_is_the_one_at_a_speedup_of_1():
    """As with n-gram: half of three tokens are accepted in every other step.

    Such a step takes 1.75 times as long.
    """
    steps = decoding(1.75 * 0.02, length=1.75, drafted=1.5)
    engine = speed(*[steps._replace(drafts=steps.decode_steps / 2)] * 10)
    assert (engine.speedup.ratio, engine.break_even_acceptance) == pytest.approx((1.0, 0.5))


def test_break_even_acceptance_is_never_below_0_and_above_1_if_nothing_breaks_even():
    """Above 1 says that no acceptance rate would do; below 0 would say nothing."""
    assert speed(*[decoding(0.019)] * 10).break_even_acceptance == 0
    assert speed(*[decoding(0.06, drafted=1)] * 10).break_even_acceptance == pytest.approx(2)


ROUGH = PlainStepTimes(
    running=(1.0, 16.0), seconds=(0.02, 0.02), context=100.0, prefill_seconds=0.0002, drift=0.03
)


def at_length(length, per_token):
    """After requests of 100 tokens that got ``length`` of them a step, at so many seconds each."""
    steps = decoding(0.03, length=length)
    steps = steps._replace(first_tokens=steps.tokens / 100)
    seconds = per_token * steps.generated / steps.running
    return speed(*[steps._replace(engine_seconds=seconds)] * 10, curve=ROUGH)


@pytest.mark.parametrize("per_token", [0.017, 0.03])
def test_the_break_even_acceptance_has_the_error_by_which_the_speedup_there_is_off_1(per_token):
    """With the prefill that both have in common, however far from breaking even it is."""
    found = at_length(2, per_token)
    prefill = found.speedup.plain_seconds - found.plain_step_seconds
    assert prefill > 0.1 * found.plain_step_seconds

    def at(acceptance):
        length = 1 + 3 * acceptance
        return at_length(length, prefill + 2 / length * (per_token - prefill)).speedup

    rate, error = found.break_even_acceptance, found.break_even_error
    even = at(rate)
    assert even.ratio == pytest.approx(1, abs=0.01)
    assert even.error > 0.05
    assert at(rate + 0.1 * error).ratio - even.ratio == pytest.approx(0.1 * even.error, rel=0.05)


def test_the_break_even_acceptance_has_no_error_where_too_few_requests_tell():
    """The speedup may be of a longer window, in which there were enough."""
    found = speed(*[decoding(0.03)] * 10, seconds=10.0)
    assert found.speedup.error > 0
    assert found.break_even_acceptance == pytest.approx(1 / 6)
    assert found.break_even_error is None


def test_a_few_tokens_at_loads_beyond_the_reference_do_not_matter():
    """One poll of a burst in twenty takes no speedup away."""
    engine = speed(*[decoding(0.03)] * 20, period(40, 0.05, prompt_share=1))
    assert engine.speedup.ratio == pytest.approx(2 * 0.02 / 0.03)


def test_draft_tokens_without_a_draft_have_no_costs():
    """As in a window that begins with a page that was rendered between two of vLLM's updates."""
    engine = speed(*[decoding(0.03)._replace(drafts=0.0)] * 10)
    assert (engine.speedup.ratio, engine.costs) == (pytest.approx(2 * 0.02 / 0.03), None)


def test_a_count_so_large_that_it_swallows_what_is_added_leaves_nothing_to_divide_by():
    """As of a page that is wrong for once: the poll goes on, without a number."""
    window = EngineSpeedWindow(10.0, RequestSpread())
    window.add(period(1, 0.01)._replace(decode_steps=1e18), Withheld.LOAD)
    for at in range(5):
        window.mark(10.0 * at, is_compared=True)
        window.add(period(1, 0.01, engine_steps=10), Withheld.LOAD)
    assert window.read(CURVE, Withheld.NO_REFERENCE, 40.0) is None


def test_a_poll_with_times_to_first_token_but_no_first_token_gives_no_mean():
    """As when a page is rendered between two updates: nothing is divided by 0."""
    loads = LoadTotals()
    steps = Steps(1.0, 100.0, 50.0, 200.0, first_token_seconds=0.5, engine_seconds=0.5)
    loads.add(steps)
    assert {load.first_token_seconds for load in loads.report()} == {None}


FLAT = PlainStepTimes(running=(1.0, 16.0), seconds=(0.02, 0.02), context=100.0)


class Model:
    """A model with one engine under observation."""

    def __init__(self, baseline=FLAT):
        self.engine = Engine()
        self.speed = ModelSpeed(baseline, Withheld.NO_REFERENCE, window=300.0, history=900.0)

    def run(self, polls, running, step_seconds, *, length=2, **options):
        for _ in range(polls):
            before = self.engine.at
            self.engine.run(running, step_seconds, length=length, drafted=3, **options)
            self.speed.polled(before, self.engine.at, {KEY: self.engine.steps})
            self.speed.mark(self.engine.at)

    def request(self, temperature="cold", *, tokens=200, wait=0.0, **changes):
        """One that has just ended; its ``tokens`` after the first took three seconds."""
        at = self.engine.at
        times = {"arrival": at - 3.0 - wait, "first_token": at - 3.0, "last_token": at} | changes
        self.speed.finished({temperature: [finished(output_tokens=tokens + 1, **times)]})
        self.engine.at += 1
        self.speed.mark(self.engine.at)


def test_a_request_is_compared_with_the_load_after_its_first_token():
    """It waits while 16 decode, and decodes alone."""
    model = Model(replace(FLAT, seconds=(0.02, 0.04)))
    for _ in range(10):
        model.run(8, 16, 0.06)
        model.run(3, 1, 0.03)
        model.request(wait=6.0)
    assert model.speed.temperature("cold").speedup.ratio == pytest.approx(200 * 0.02 / 3)


@pytest.mark.parametrize(
    ("context", "times"),
    [
        (200.0, {}),  # another context than the baseline's
        (100.0, {"first_token": None}),
        (100.0, {"last_token": None}),
        (100.0, {"last_token": 0.0}),
    ],
)
def test_a_request_in_other_contexts_or_with_unknown_times_saves_and_loses_nothing(context, times):
    """Neither time saved nor time lost is guessed for it."""
    model = Model()
    for _ in range(10):
        model.run(6, 8, 0.03, context=context)
        model.request(**times)
    cold = model.speed.temperature("cold")
    assert model.speed.whole.withheld is (Withheld.CONTEXT if context > 100 else None)
    assert (cold.speedup, cold.saved, cold.lost) == (None, 0, 0)


def test_engines_that_left_are_forgotten_and_the_whole_stays():
    """What they did within the window still counts for the model."""
    model = Model()
    model.run(40, 8, 0.03)
    model.speed.forget_all_but([EngineKey("m", "1")])
    model.speed.mark(model.engine.at + 1)
    assert model.speed.engine(KEY) is None
    assert model.speed.whole.speedup is not None


def test_a_speedup_that_is_withheld_holds_for_an_hour_with_its_age():
    """While it holds, no answer flips for a minute without a reference."""
    model = Model()
    model.run(40, 8, 0.03)
    known = model.speed.whole.speedup
    model.run(400, 8, 0.03, context=1000.0)
    assert (model.speed.whole.speedup, model.speed.whole.withheld) == (None, Withheld.CONTEXT)
    assert model.speed.whole.in_force.ratio == pytest.approx(known.ratio, rel=0.01)
    assert 60 <= model.speed.whole.held.age <= 400
    last = LastKnown()
    last.remember(known, 0.0)

    assert last.recall(3600.0).age == 3600
    assert last.recall(3600.1) is None
    assert last.recall(-1.0) is None  # the clock was set back


def test_the_speedup_by_context_is_of_the_contexts_that_there_were():
    """Those without any traffic have no row."""
    contexts = ContextSpeed(RequestSpread())
    for at in range(20):
        long = at >= 10
        steps = period(64, 0.04 if long else 0.02, context=5000.0 if long else 100.0, length=2)
        contexts.add(steps, plain(0.016))
        contexts.mark(4.0 * at)
    ratios = {label: found.ratio for label, found in contexts.read().items()}
    assert ratios == pytest.approx({"64-256": 1.6, "4k-16k": 0.8})
    labels = [context_label(tokens) for tokens in (1, 64, 65, 65_536, 65_537)]
    assert labels == ["0-64", "0-64", "64-256", "16k-64k", "64k+"]
