"""Plain step times: fitted by load, and read between the loads measured.

Their mean is known over any stretch of time.
"""

import pickle
from random import Random

import pytest

from sidecar.analysis.speed.clock import DecodeClock
from sidecar.settings.baselines import PlainStepTimes
from tests.analysis.decoding import period, plain

LOADS = (1, 2, 4, 8, 16)


def bent(running):
    """Bound by memory up to 4 requests, by compute beyond."""
    return 0.010 + 0.0001 * running + 0.002 * max(running - 4, 0)


def measured(curve, **options):
    """Twenty periods at each load."""
    return [period(load, curve(load), **options) for _ in range(20) for load in LOADS]


def test_a_curve_of_any_shape_is_exact_at_the_loads_measured_and_linear_between_them():
    curve = fit(measured(bent))
    for load in LOADS:
        assert plain_step(curve, load).seconds == pytest.approx(bent(load), rel=1e-4)
    assert plain_step(curve, 12).seconds == pytest.approx((bent(8) + bent(16)) / 2, rel=1e-4)


def test_times_to_first_token_are_means_by_load_and_absent_where_a_load_has_none():
    periods = [
        period(load, 0.01)._replace(first_tokens=2, first_token_seconds=0.2 * load)
        for load in (1, 8)
    ]
    curve = fit(periods * 20)
    assert beside(curve, curve.running[0]) == pytest.approx((0.01, 0.1, 100), rel=0.05)
    assert beside(curve, curve.running[1]) == pytest.approx((0.01, 0.8, 800), rel=0.05)
    assert fit([*periods, period(2, 0.01)] * 20).first_token_seconds == ()
    spread = [
        period(load, 0.01)._replace(first_tokens=load, first_token_seconds=0.1 * load**2)
        for load in (6, 8, 10, 32)
    ]
    # At the outer end as on the way to it.
    assert beside(fit(spread * 20), 6)[1] == pytest.approx(0.6, rel=0.01)
    assert beside(curve, 20) == beside(None, 1) == (None, None, None)


@pytest.mark.parametrize("load", [0.5, 17.5, 100])
def test_nothing_is_claimed_beyond_the_loads_measured(load):
    assert plain_step(fit(measured(bent)), load) is None


def test_one_load_gives_a_curve_for_that_load_alone_and_too_few_periods_give_none():
    assert fit([period(1, 0.01)] * 5) is None
    curve = fit([period(8, 0.02)] * 20)
    assert plain_step(curve, 8).seconds == pytest.approx(0.02)
    assert plain_step(curve, 4) is None
    assert plain_step(curve, 9) is None


def test_a_single_burst_does_not_spoil_the_curve_of_the_loads_below():
    """Leaving it out leaves nothing there, so its error is unknown: the curve ends below it."""
    curve = fit([*measured(bent), period(60, bent(60))])
    assert curve.running[-1] == 16
    assert plain_step(curve, 8).seconds == pytest.approx(bent(8), rel=1e-3)
    assert plain_step(curve, 30) is None


def test_a_line_that_falls_below_0_where_something_was_measured_is_no_curve():
    assert fit([period(23, 0.025), *[period(44, 0.030)] * 20, *[period(46, 0.038)] * 20]) is None


@pytest.mark.parametrize("seconds", [4000.0, 1e12])
def test_times_that_no_step_takes_are_no_curve(seconds):
    """As of a page that is wrong: the poll that fits it goes on."""
    assert fit([period(1, seconds)] * 20) is None
    assert fit([*[period(1, 0.01)] * 20, *[period(load, seconds) for load in LOADS] * 20]) is None


def test_neighbouring_periods_that_share_an_error_are_not_taken_as_independent():
    """On a machine that is slow for minutes, ten periods with one error are one observation."""
    random = Random(3)
    slow = [1 + random.gauss(0, 0.1) for _ in range(20)]
    together = [period(8, 0.02 * factor) for factor in slow for _ in range(10)]
    assert fit(together).errors[0] == pytest.approx(0.02 * 0.1 / 20**0.5, rel=0.4)


@pytest.mark.parametrize(
    ("measured_with", "share", "alike"),
    [
        (1.0, 1.4, True),
        (1.0, 0.7, True),
        (1.0, 1.6, False),
        (1.0, 0.5, False),
        (0.0, 0.1, True),
        (0.0, 1.0, False),
    ],
)
def test_prompts_are_alike_up_to_half_as_many_again_or_if_there_are_hardly_any(
    measured_with, share, alike
):
    curve = fit(measured(bent, prompt_share=measured_with))
    assert are_prompts_alike(curve, period(1, 0.01, prompt_share=share)) is alike


def test_blocks_that_eagle_drops_from_the_prefix_cache_do_not_make_other_prompts():
    """The numbers are the lab's, for the same prompts.

    vLLM computed 2.96 prompt tokens per generated token, and 1.085 by plain decoding.
    """
    plain, eagle = fit(measured(bent, prompt_share=1.085)), period(1, 0.01, prompt_share=2.96)
    assert not are_prompts_alike(plain, eagle)
    assert are_prompts_alike(plain, eagle._replace(dropped_tokens=0.6 * eagle.prompt_tokens))
    assert not are_prompts_alike(plain, eagle._replace(dropped_tokens=0.3 * eagle.prompt_tokens))


@pytest.mark.parametrize(
    ("deviations", "error"),
    [(((0.001,), (0.002,)), 0.0015), (((0.001,), (0, 0.002)), 0.00112), (((0.001,), (-0.001,)), 0)],
)
def test_between_two_loads_time_is_linear_and_errors_add_up_by_what_they_have_in_common(
    deviations, error
):
    curve = PlainStepTimes(
        running=(1.0, 8.0), seconds=(0.01, 0.02), errors=(0.0, 0.0), deviations=deviations
    )
    assert plain_step(curve, 4.5).seconds == pytest.approx(0.015)
    assert plain_step(curve, 4.5).error == pytest.approx(error, abs=5e-6)


def clocked(*polls):
    """A clock after these polls, one a second from 0 on.

    Each poll has the engines' steps and plain times.
    """
    clock = DecodeClock(900.0)
    for at, engines in enumerate(polls):
        clock.add(float(at), at + 1.0, engines)
    return clock


def test_polls_that_are_partly_in_a_stretch_count_in_part():
    clock = clocked(
        [(period(4, 0.01, engine_steps=100), plain(0.008, 0.001))],
        [(period(4, 0.02, engine_steps=50), plain(0.012, 0.003))],
    )
    step = clock.between(0.5, 1.5)  # 50 steps of the first second, 25 of the second
    assert step.seconds == pytest.approx((50 * 0.008 + 25 * 0.012) / 75)
    assert step.error == pytest.approx((50 * 0.001 + 25 * 0.003) / 75)


def test_a_step_counts_once_however_many_requests_are_in_it():
    alone, crowded = period(1, 0.01, engine_steps=100), period(64, 0.02, engine_steps=50)
    clock = clocked([(alone, plain(0.01))], [(crowded, plain(0.02))])
    assert clock.between(0.0, 2.0).seconds == pytest.approx(2 / 150)


def test_several_engines_count_by_the_requests_in_each():
    busy, idle = period(3, 0.01, engine_steps=100), period(1, 0.02, engine_steps=50)
    clock = clocked([(busy, plain(0.01)), (idle, plain(0.02))])
    assert clock.between(0.0, 1.0).seconds == pytest.approx((300 * 0.01 + 50 * 0.02) / 350)


def test_nothing_is_known_beyond_the_polls_or_with_too_little_plain_time():
    assert clocked().between(0.0, 1.0) is None
    clock = clocked([(period(1, 0.01), plain(0.01))], [(period(99, 0.01), None)], [])
    assert clock.between(-0.1, 1.0) is None
    assert clock.between(0.0, 1.0) is not None
    assert clock.between(0.0, 2.0) is None
    assert clock.between(2.0, 3.0) is None  # nothing was decoded
    assert clock.between(0.5, 0.5) is None


def test_a_request_that_is_settled_after_the_last_poll_ends_with_it():
    assert clocked([(period(1, 0.01), plain(0.01))]).between(0.5, 7.0).seconds == pytest.approx(
        0.01
    )


def test_a_gap_or_a_clock_set_back_begins_anew():
    clock = DecodeClock(900.0)
    clock.add(100.0, 101.0, [(period(1, 0.01), plain(0.01))])
    clock.add(50.0, 51.0, [(period(1, 0.02), plain(0.02))])
    assert clock.between(50.0, 51.0).seconds == pytest.approx(0.02)
    assert clock.between(49.0, 51.0) is None


def test_the_clock_s_history_is_bounded():
    clock = DecodeClock(10.0)
    for at in range(10_000):
        clock.add(float(at), at + 1.0, [(period(1, 0.01), plain(0.01))])
        assert len(pickle.dumps(clock)) < 100 * (10 + 65)
    assert clock.between(9_991.0, 10_000.0).seconds == pytest.approx(0.01)
