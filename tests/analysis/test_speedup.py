"""Speedup over the sliding window: a quotient of sums, with honest errors, and when none is claimed."""

import pytest

from sidecar.analysis.speed.plain import plain_step
from sidecar.analysis.speed.speedup import EngineSpeedWindow, SlidingTimes, Withheld
from sidecar.settings.baselines import PlainStepTimes
from tests.analysis.decoding import period, plain

CURVE = PlainStepTimes(running=(1.0, 16.0), seconds=(0.01, 0.02), errors=(0.0, 0.0), prompt_share=1.0)


def times(*entries, seconds=300.0):
    """(at, tokens, plain seconds per token, actual seconds in all)."""
    window = SlidingTimes(seconds)
    for at, tokens, each, actual in entries:
        window.add(tokens=tokens, plain=plain(each), actual=actual)
        window.mark(at)
    return window


def window(*periods):
    found = EngineSpeedWindow(300.0)
    for at, steps in enumerate(periods):
        found.add(steps, plain_step(CURVE, steps.running))
        found.mark(5.0 * at)
    return found.read(CURVE, Withheld.NO_REFERENCE)


def test_tokens_and_times_are_summed_not_averaged():
    """Many slow tokens and few fast ones: the mean of the ratios would be above 1."""
    window = times(*((5.0 * i, 1000, 0.01, 12.5) if i % 2 else (5.0 * i, 10, 0.01, 0.05) for i in range(20)))
    found = window.read()
    assert found.ratio == pytest.approx((1000 * 0.01 + 10 * 0.01) / (12.5 + 0.05))
    assert found.actual_seconds == pytest.approx(12.55 / 1010)
    assert found.plain_seconds == pytest.approx(0.01)


def test_what_has_left_the_window_does_not_count():
    window = times(*((5.0 * i, 100, 0.01, 1.0 if i < 10 else 2.0) for i in range(20)), seconds=40.0)
    assert window.read().ratio == pytest.approx(0.5)
    window.mark(1000.0)
    window.mark(2000.0)
    assert window.read() is None


def test_too_little_is_no_estimate():
    assert times(*((5.0 * i, 100, 0.01, 1.0) for i in range(4))).read() is None
    assert times(*((5.0 * i, 0, 0.01, 0.0) for i in range(40))).read() is None


def test_an_error_of_the_reference_is_common_to_all_tokens():
    window = SlidingTimes(300.0)
    for i in range(60):
        window.add(tokens=100, plain=plain(0.01, error=0.0005), actual=1.0)
        window.mark(5.0 * i)
    assert window.read().error == pytest.approx(0.05)


def test_speedup_and_break_even_of_an_engine():
    """Steps of 30 ms that give 2 tokens, where plain ones take 20: length 1.5 breaks even, of 3 drafts a sixth."""
    found = window(*[period(16, 0.03, length=2, drafted=3, prompt_share=1)] * 10)
    assert found.withheld is None
    assert found.speedup.ratio == pytest.approx(2 * 0.02 / 0.03)
    assert found.break_even_length == pytest.approx(1.5)
    assert found.break_even_acceptance == pytest.approx(0.5 / 3)
    assert found.speedup.actual_seconds == pytest.approx(0.015)
    assert (found.costs.actual, found.costs.plain, found.costs.drafted) == pytest.approx((0.03, 0.02, 3))


def test_where_half_of_the_steps_have_no_draft_the_acceptance_that_breaks_even_is_the_one_at_a_speedup_of_1():
    """As with n-gram: half of three tokens are accepted in every other step, which takes 1.75 times as long."""
    steps = period(16, 1.75 * 0.02, length=1.75, drafted=1.5, prompt_share=1)
    found = window(*[steps._replace(drafts=steps.decode_steps / 2)] * 10)
    assert (found.speedup.ratio, found.break_even_acceptance) == pytest.approx((1.0, 0.5))


def test_break_even_acceptance_is_never_below_0_and_above_1_if_nothing_breaks_even():
    assert window(*[period(16, 0.019, length=2, drafted=3, prompt_share=1)] * 10).break_even_acceptance == 0
    never = window(*[period(16, 0.06, length=2, drafted=1, prompt_share=1)] * 10)
    assert never.break_even_acceptance == pytest.approx(2)


def test_a_few_tokens_beyond_its_loads_do_not_matter():
    found = window(*[period(16, 0.03, length=2, drafted=3, prompt_share=1)] * 20, period(40, 0.05, prompt_share=1))
    assert found.speedup.ratio == pytest.approx(2 * 0.02 / 0.03)


def test_at_first_there_is_too_little():
    found = window(period(16, 0.03, length=2, drafted=3, prompt_share=1))
    assert (found.speedup, found.withheld) == (None, Withheld.TOO_LITTLE)
    assert window() is None


def test_draft_tokens_without_a_draft_have_no_costs():
    """As in a window that begins with a page that was rendered between two of vLLM's updates."""
    found = window(*[period(16, 0.03, length=2, drafted=3, prompt_share=1)._replace(drafts=0.0)] * 10)
    assert found.speedup.ratio == pytest.approx(2 * 0.02 / 0.03)
    assert found.costs is None


def test_a_count_so_large_that_it_swallows_what_is_added_leaves_nothing_to_divide_by():
    found = EngineSpeedWindow(10.0)
    found.add(period(1, 0.01)._replace(decode_steps=1e18), None)
    for at in range(5):
        found.mark(10.0 * at)
        found.add(period(1, 0.01, engine_steps=10), None)
    assert found.read(CURVE, Withheld.NO_REFERENCE) is None
