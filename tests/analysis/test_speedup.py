"""Speedup over the sliding window: a quotient of sums, with honest errors, and when none is claimed."""

import pytest

from sidecar.analysis.speed.plain import plain_step
from sidecar.analysis.speed.speedup import EngineSpeedWindow, LoadTotals, SlidingTimes, Withheld
from sidecar.analysis.speed.steps import Steps
from sidecar.settings.baselines import PlainStepTimes
from tests.analysis.decoding import period, plain

CURVE = PlainStepTimes(running=(1.0, 16.0), seconds=(0.01, 0.02), errors=(0.0, 0.0), prompt_share=1.0)


def times(*polls, seconds=300.0, error=0.0):
    """A window after polls, one each five seconds: (tokens, actual seconds in all), each token plainly 10 ms."""
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
    assert (speed(decoding(0.03)).speedup, speed(decoding(0.03)).withheld) == (None, Withheld.TOO_LITTLE)


def test_an_error_of_the_reference_is_common_to_all_tokens():
    assert times(*[(100, 1.0)] * 60, error=0.0005).read().error == pytest.approx(0.05)


def test_with_drafts_in_half_of_the_steps_the_break_even_acceptance_is_the_one_at_a_speedup_of_1():
    """As with n-gram: half of three tokens are accepted in every other step, which takes 1.75 times as long."""
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
