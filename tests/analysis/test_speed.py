"""Speed: steps from counters, and speedup over the sliding window with honest errors.

One model's speed is checked poll by poll.
"""

import pytest

from sidecar.analysis.speed.model_speed import ModelSpeed
from sidecar.analysis.speed.plain import plain_step
from sidecar.analysis.speed.speedup import EngineSpeedWindow, LoadTotals, SlidingTimes, Withheld
from sidecar.analysis.speed.steps import LOAD_LABELS, Steps, counted_steps, load_label
from sidecar.engine.identity import EngineKey
from sidecar.engine.names import Counter
from sidecar.settings.baselines import PlainStepTimes
from tests.analysis.analysis_tools import finished
from tests.analysis.decoding import KEY, Engine, period, plain


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
    engine = Engine()
    engine.counters[Counter.PREFIX_CACHE_HITS] = 0.0
    engine.run(1, 0.05)
    engine.counters[Counter.PREFIX_CACHE_HITS] += 30
    engine.run(1, 0.05, prompt_share=2)
    assert engine.steps.prompt_tokens == pytest.approx(10)


@pytest.mark.parametrize(("requests", "least"), [(0, 2.0), (1, 1.2), (3, 0.0)])
def test_up_to_a_block_a_request_of_the_prompts_computed_may_be_what_eagle_dropped(requests, least):
    engine = Engine()
    engine.run(1, 0.05, prompt_share=2)
    grown = engine.polls[-1].counters | {Counter.FIRST_TOKENS: requests}
    steps = counted_steps(grown | {Counter.GENERATION_TOKENS: 20.0 + requests}, block=16)
    assert steps.least_prompt_share * (20 + requests) == pytest.approx(20 * least)


@pytest.mark.parametrize(
    "missing",
    [
        Counter.DECODE_SECONDS,
        Counter.DECODE_STEPS,
        Counter.STEPS,
        Counter.FIRST_TOKENS,
        Counter.GENERATION_TOKENS,
    ],
)
def test_without_one_of_its_counters_nothing_is_known(missing):
    engine = Engine()
    del engine.counters[missing]
    engine.run(1, 0.05)
    assert engine.steps is None


def test_a_period_without_decoding_has_no_steps():
    engine = Engine()
    engine.run(0, 0.05)
    assert engine.steps is None


def test_a_load_is_labelled_by_the_rounded_number_of_requests():
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
    running=(1.0, 16.0), seconds=(0.01, 0.02), errors=(0.0, 0.0), prompt_share=1.0
)


def times(*polls, seconds=300.0, error=0.0):
    """A window after polls of (tokens, actual seconds in all), one each five seconds.

    By plain decoding each token takes 10 ms.
    """
    window = SlidingTimes(seconds)
    for at, (tokens, actual) in enumerate(polls):
        window.add(tokens=tokens, plain=plain(0.01, error), actual=actual)
        window.mark(5.0 * at)
    return window


def speed(*periods):
    """The speed after these periods, one each five seconds."""
    window = EngineSpeedWindow(300.0)
    for at, steps in enumerate(periods):
        window.add(steps, plain_step(CURVE, steps.running))
        window.mark(5.0 * at)
    return window.read(CURVE, Withheld.NO_REFERENCE)


def decoding(step_seconds, length=2, drafted=3):
    return period(16, step_seconds, length=length, drafted=drafted, prompt_share=1)


def test_tokens_and_times_are_summed_not_averaged():
    """Many slow tokens and few fast ones: the mean of the ratios would be above 1."""
    speedup = times(*[(10, 0.05), (1000, 12.5)] * 10).read()
    assert speedup.ratio == pytest.approx((1000 * 0.01 + 10 * 0.01) / (12.5 + 0.05))
    assert (speedup.actual_seconds, speedup.plain_seconds) == pytest.approx((12.55 / 1010, 0.01))


def test_times_that_have_left_the_window_do_not_count():
    window = times(*[(100, 1.0)] * 10, *[(100, 2.0)] * 10, seconds=40.0)
    assert window.read().ratio == pytest.approx(0.5)
    window.mark(1000.0)
    window.mark(2000.0)
    assert window.read() is None


def test_too_few_polls_or_tokens_give_no_speedup():
    assert times(*[(100, 1.0)] * 4).read() is times(*[(0, 0.0)] * 40).read() is None
    assert speed() is None
    assert (speed(decoding(0.03)).speedup, speed(decoding(0.03)).withheld) == (
        None,
        Withheld.TOO_LITTLE,
    )


def test_an_error_of_the_reference_is_common_to_all_tokens():
    assert times(*[(100, 1.0)] * 60, error=0.0005).read().error == pytest.approx(0.05)


def test_with_drafts_in_half_of_the_steps_the_break_even_acceptance_is_the_one_at_a_speedup_of_1():
    """As with n-gram: half of three tokens are accepted in every other step.

    Such a step takes 1.75 times as long.
    """
    steps = decoding(1.75 * 0.02, length=1.75, drafted=1.5)
    engine = speed(*[steps._replace(drafts=steps.decode_steps / 2)] * 10)
    assert (engine.speedup.ratio, engine.break_even_acceptance) == pytest.approx((1.0, 0.5))


def test_break_even_acceptance_is_never_below_0_and_above_1_if_nothing_breaks_even():
    assert speed(*[decoding(0.019)] * 10).break_even_acceptance == 0
    assert speed(*[decoding(0.06, drafted=1)] * 10).break_even_acceptance == pytest.approx(2)


def test_a_few_tokens_at_loads_beyond_the_reference_do_not_matter():
    engine = speed(*[decoding(0.03)] * 20, period(40, 0.05, prompt_share=1))
    assert engine.speedup.ratio == pytest.approx(2 * 0.02 / 0.03)


def test_draft_tokens_without_a_draft_have_no_costs():
    """As in a window that begins with a page that was rendered between two of vLLM's updates."""
    engine = speed(*[decoding(0.03)._replace(drafts=0.0)] * 10)
    assert (engine.speedup.ratio, engine.costs) == (pytest.approx(2 * 0.02 / 0.03), None)


def test_a_count_so_large_that_it_swallows_what_is_added_leaves_nothing_to_divide_by():
    window = EngineSpeedWindow(10.0)
    window.add(period(1, 0.01)._replace(decode_steps=1e18), None)
    for at in range(5):
        window.mark(10.0 * at)
        window.add(period(1, 0.01, engine_steps=10), None)
    assert window.read(CURVE, Withheld.NO_REFERENCE) is None


def test_a_poll_with_times_to_first_token_but_no_first_token_gives_no_mean():
    loads = LoadTotals()
    loads.add(Steps(1.0, 100.0, 50.0, 200.0, first_tokens=0.0, first_token_seconds=0.5))
    assert {load.first_token_seconds for load in loads.report()} == {None}


FLAT = PlainStepTimes(running=(1.0, 16.0), seconds=(0.02, 0.02), errors=(0.0, 0.0))


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
    model = Model(PlainStepTimes(running=(1.0, 16.0), seconds=(0.02, 0.04), errors=(0.0, 0.0)))
    for _ in range(10):
        model.run(8, 16, 0.06)
        model.run(3, 1, 0.03)
        model.request(wait=6.0)
    assert model.speed.temperature("cold").speedup.ratio == pytest.approx(200 * 0.02 / 3)


@pytest.mark.parametrize(
    ("prompt_share", "times"),
    [
        (2, {}),  # other prompts than the baseline's
        (0, {"first_token": None}),
        (0, {"last_token": None}),
        (0, {"last_token": 0.0}),
    ],
)
def test_a_request_with_other_prompts_or_unknown_times_saves_and_loses_nothing(prompt_share, times):
    model = Model()
    for _ in range(10):
        model.run(6, 5, 0.03, prompt_share=prompt_share)
        model.request(**times)
    cold = model.speed.temperature("cold")
    assert model.speed.whole.withheld is (Withheld.PROMPTS if prompt_share else None)
    assert (cold.speedup, cold.saved, cold.lost) == (None, 0, 0)


def test_engines_that_left_are_forgotten_and_the_whole_stays():
    model = Model()
    model.run(40, 4, 0.03)
    model.speed.forget_all_but([EngineKey("m", "1")])
    model.speed.mark(model.engine.at + 1)
    assert model.speed.engine(KEY) is None
    assert model.speed.whole.speedup is not None
