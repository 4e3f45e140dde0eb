"""Plain step times: fitted by load, and read between the loads measured.

Their mean is known over any stretch of time.
"""

import pickle
from dataclasses import replace
from random import Random

import pytest

from sidecar.analysis.speed.clock import DecodeClock
from sidecar.analysis.speed.fit import Block, blocks_of, fit
from sidecar.analysis.speed.plain import (
    Beside,
    PlainWork,
    beside,
    covers,
    knee,
    plain_token,
    plain_wait,
    plain_work,
    prefill_time,
    step_time,
    uncovered,
)
from sidecar.analysis.speed.withheld import Withheld
from sidecar.settings.baselines import PlainStepTimes
from tests.analysis.decoding import period, plain

LOADS = (1, 2, 4, 8, 16)


def bent(running):
    """Bound by memory up to 4 requests, by compute beyond."""
    return 0.010 + 0.0001 * running + 0.002 * max(running - 4, 0)


def fitted(periods):
    return fit(blocks_of(periods))


def plain_step(curve, running):
    """S0 at a load that was measured; None beyond."""
    return step_time(curve, running) if covers(curve, running) else None


def measured(curve, **options):
    """Twenty periods at each load."""
    return [period(load, curve(load), **options) for _ in range(20) for load in LOADS]


def test_a_curve_of_any_shape_is_exact_at_the_loads_measured_and_linear_between_them():
    """A law with a knee, as of memory and then compute, needs no model of it."""
    curve = fitted(measured(bent))
    for load in LOADS:
        assert plain_step(curve, load).seconds == pytest.approx(bent(load), rel=1e-4)
    assert plain_step(curve, 12).seconds == pytest.approx((bent(8) + bent(16)) / 2, rel=1e-4)


def test_times_to_first_token_are_means_by_load_and_absent_where_a_load_has_none():
    """One load without them leaves the whole row out, since nothing can be read between loads."""
    periods = [
        period(load, 0.01)._replace(first_tokens=2, first_token_seconds=0.2 * load)
        for load in (1, 8)
    ]
    curve = fitted(periods * 20)
    low, high = (beside(curve, one._replace(first_tokens=0.0)) for one in periods)
    assert low.first_token_seconds == pytest.approx(0.1, rel=0.05)
    assert (high.wait_seconds, high.first_token_seconds) == pytest.approx((0.01, 0.8), rel=0.05)
    assert high.tokens_per_second == pytest.approx(800, rel=0.05)
    assert fitted([*periods, period(2, 0.01)] * 20).first_token_seconds == ()
    assert beside(curve, period(20, 0.01)) == beside(None, period(1, 0.01)) == Beside()


@pytest.mark.parametrize("load", [0.5, 17.5, 100])
def test_nothing_is_claimed_beyond_the_loads_measured(load):
    """Below the lowest load and above the highest, no step time is made up."""
    assert plain_step(fitted(measured(bent)), load) is None


def test_one_load_gives_a_curve_for_that_load_alone_and_too_few_periods_give_none():
    """A single point says nothing of its neighbours."""
    assert fitted([period(1, 0.01)] * 5) is None
    curve = fitted([period(8, 0.02)] * 20)
    assert plain_step(curve, 8).seconds == pytest.approx(0.02)
    assert plain_step(curve, 4) is None
    assert plain_step(curve, 9) is None


def test_a_single_burst_does_not_spoil_the_curve_of_the_loads_below():
    """Leaving it out leaves nothing there, so its error is unknown: the curve ends below it."""
    curve = fitted([*measured(bent), period(60, bent(60))])
    assert curve.running[-1] == 16
    assert plain_step(curve, 8).seconds == pytest.approx(bent(8), rel=1e-3)
    assert plain_step(curve, 30) is None


@pytest.mark.parametrize("seconds", [4000.0, 1e12])
def test_times_that_no_step_takes_are_no_curve(seconds):
    """As of a page that is wrong: the poll that fits it goes on."""
    assert fitted([period(1, seconds)] * 20) is None
    assert (
        fitted([*[period(1, 0.01)] * 20, *[period(load, seconds) for load in LOADS] * 20]) is None
    )


def test_neighbouring_periods_that_share_an_error_are_not_taken_as_independent():
    """On a machine that is slow for minutes, ten periods with one error are one observation."""
    random = Random(3)
    slow = [1 + random.gauss(0, 0.1) for _ in range(20)]
    together = [period(8, 0.02 * factor) for factor in slow for _ in range(10)]
    assert fitted(together).errors[0] == pytest.approx(0.02 * 0.1 / 20**0.5, rel=0.4)


CONTEXTS = PlainStepTimes(
    running=(1.0, 8.0),
    seconds=(0.01, 0.02),
    errors=(0.0, 0.0),
    contexts=(1000.0, 1000.0),
    context_ranges=((100.0, 2000.0), (100.0, 2000.0)),
    slopes=(1e-6, 8e-6),
    slope_errors=(1e-7, 1e-7),
    prefill_tokens=((500.0, 2000.0), (500.0, 2000.0)),
    prefill_seconds=((0.01, 0.05), (0.01, 0.05)),
    prefill_errors=((0.001, 0.001), (0.001, 0.001)),
)
ONE_CONTEXT = replace(CONTEXTS, context_ranges=(), slopes=(), slope_errors=())


def test_a_step_grows_with_the_context_in_proportion_to_the_requests():
    """The slope is interpolated between the loads, and its error counts with the distance."""
    assert step_time(CONTEXTS, 8, 1000).seconds == pytest.approx(0.02)
    assert step_time(CONTEXTS, 8, 2000).seconds == pytest.approx(0.028)
    assert step_time(CONTEXTS, 4.5, 0).seconds == pytest.approx(0.015 - 0.0045)
    far = step_time(CONTEXTS, 8, 2000)
    assert far.error == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("times", "context", "why"),
    [
        (CONTEXTS, 20, None),  # below the shortest, a line is safe
        (CONTEXTS, 3000, None),  # half as much again as the longest
        (CONTEXTS, 3001, Withheld.CONTEXT),
        (CONTEXTS, None, Withheld.CONTEXT),
        (ONE_CONTEXT, 1500, None),
        (ONE_CONTEXT, 1501, Withheld.CONTEXT),
        (ONE_CONTEXT, 660, Withheld.CONTEXT),
        (replace(ONE_CONTEXT, contexts=()), 1000, Withheld.CONTEXT),  # of an earlier version
    ],
)
def test_beyond_the_measured_contexts_nothing_is_claimed(times, context, why):
    """A context may be half as long again as the longest that was measured."""
    steps = period(8, 0.02).holding(context)
    assert uncovered(times, steps) is why
    assert (plain_token(times, steps) is None) is (why is not None)


def test_with_one_context_the_time_is_known_only_to_within_all_or_nothing_growing_with_it():
    """The estimate is in the middle of both, and the doubt is half of what lies between them."""
    time = step_time(ONE_CONTEXT, 8, 1200)
    assert (time.seconds, time.doubt) == pytest.approx((0.022, 0.002))
    assert step_time(ONE_CONTEXT, 8, 800).seconds == pytest.approx(0.018)
    assert step_time(ONE_CONTEXT, 8, 1000).doubt == 0


def prefilling(running, prompt_share, first=10.0):
    steps = period(running, 0.02, prompt_share=prompt_share, context=1000.0)
    return steps._replace(first_tokens=first)


@pytest.mark.parametrize(("tokens", "seconds"), [(2000, 0.05), (3500, 0.09), (200, 0.002)])
def test_what_prefill_adds_to_a_plain_token_is_its_time_shared_by_the_tokens(tokens, seconds):
    """One request at a time, and each of ten prompts is a step."""
    steps = prefilling(1, tokens * 10 / 100)
    step = step_time(CONTEXTS, plain_work(steps).decodes, 1000)
    each = plain_token(CONTEXTS, steps).seconds - step.seconds

    assert each * steps.generated / steps.running == pytest.approx(10 * seconds, rel=0.05)


def test_a_request_does_not_wait_for_its_own_prefill():
    """Alone, it finds no step in the way of its decoding, however long the prompts are."""
    steps = prefilling(1, 20.0)
    assert plain_wait(CONTEXTS, steps).seconds == pytest.approx(0.01, rel=0.15)


def test_prompts_that_begin_in_the_same_step_share_it():
    """So there are fewer mixed steps than prompts, with all of the prompt tokens in them."""
    few, many = prefilling(8, 10.0, first=1.0), prefilling(8, 10.0, first=400.0)
    assert plain_work(few).mixed == pytest.approx(1, rel=0.01)
    assert 50 < plain_work(many).mixed < 150
    work = plain_work(many)
    assert work.mixed * work.tokens == pytest.approx(many.prompt_tokens)


def test_a_prompt_longer_than_a_step_takes_several():
    """Each chunk is a step of its own, so a mixed step has less than the whole prompt."""
    assert plain_work(prefilling(1, 50.0), 2048.0).tokens == pytest.approx(500, rel=0.03)
    # Two full ones and a part of a third, or of a fourth if another prompt had begun before.
    assert plain_work(prefilling(1, 500.0), 2048.0).tokens == pytest.approx(5000 / 2.94, rel=0.03)


def waiting(at_once):
    """Of requests with prompts of two chunks and 33 tokens, speculation serves one in two steps.

    So few of them decode at a time, and the others wait, as vLLM's times tell.
    """
    steps = period(4, 0.1, length=2.9, engine_steps=200.0, context=1000.0)
    steps = steps._replace(first_tokens=100.0, tokens=3200.0, prompt_tokens=100 * 4096.0)
    waited = at_once * steps.engine_seconds - steps.seconds
    return steps._replace(prefill_seconds=0.2 * waited, queue_seconds=0.8 * waited)


def test_requests_that_wait_for_room_for_their_prompts_would_decode_without_speculation():
    """A step prefills half a prompt at most, so plain decoding finishes one in two as well."""
    work = plain_work(waiting(60), 2048.0)
    assert work.at_once == pytest.approx(60)
    assert 100 / work.steps == pytest.approx(0.5, rel=0.1)
    assert work.decodes == pytest.approx(16, rel=0.1)
    assert work.mixed == pytest.approx(work.steps, rel=0.05)
    # With fewer at once there is room.
    assert 100 / plain_work(waiting(8), 2048.0).steps == pytest.approx(8 / 35.5, rel=0.1)


@pytest.mark.parametrize(
    ("seconds", "hidden"), [((0.01, 0.05), 125), ((0.01, 0.04), None), ((0.01, 0.01), None)]
)
def test_prefill_that_a_gpu_hides_behind_reading_its_weights_costs_nothing(seconds, hidden):
    """Time that grows faster than the tokens shows from where on prefill costs anything."""
    assert knee((500.0, 2000.0), seconds) == (hidden and pytest.approx(hidden))


@pytest.mark.parametrize(("tokens", "seconds"), [(100, 0.0), (500, 0.0), (2000, 0.04)])
def test_the_shortest_prompts_measured_may_be_hidden_altogether(tokens, seconds):
    """A cost of 0 at the shortest is a measurement, not a missing one."""
    free = replace(CONTEXTS, prefill_seconds=((0.0, 0.04), (0.0, 0.04)))
    work = PlainWork(steps=1.0, at_once=1.0, decodes=1.0, mixed=1.0, tokens=tokens)
    assert prefill_time(free, work).seconds == pytest.approx(seconds)


def blocks(law, *, chunk=None, pure=False):
    """Twelve slots at one load of eight: two contexts, with new and with repeated prompts."""
    found = []
    for number in range(3):
        for context, tokens in ((100.0, 50.0), (2000.0, 1900.0)):
            for first in (10.0, 5.0):
                steps = period(8, 0.02, engine_steps=100.0, context=context)
                steps = steps._replace(first_tokens=first, prompt_tokens=first * tokens)
                work = plain_work(steps, chunk)
                seconds = work.steps * law(context) + work.mixed * 0.0003 * work.tokens
                steps = steps._replace(engine_seconds=seconds)
                found.append(Block(steps, number=number, wanted=8))
    return found


def test_context_and_prefill_are_told_apart_by_prompts_that_are_new_or_repeated():
    """Repeated prompts have the context without the prefill, so both slopes come out."""
    curve = fit(blocks(lambda context: 0.02 + 1e-5 * context))
    at = curve.running[0]
    assert step_time(curve, at, 100).seconds == pytest.approx(0.021, rel=0.03)
    assert step_time(curve, at, 2000).seconds == pytest.approx(0.04, rel=0.01)
    assert curve.prefill_seconds[0][-1] / curve.prefill_tokens[0][-1] == pytest.approx(
        0.0003, rel=0.02
    )
    assert curve.drift == pytest.approx(0, abs=1e-6)


def test_a_machine_that_drifts_from_round_to_round_shows_in_the_error_of_all_times():
    """The drift is measured between rounds; on a busy machine it is assumed to be 5 % at least."""
    drifting = [
        replace(
            block,
            steps=block.steps._replace(
                engine_seconds=block.steps.engine_seconds * (1 + 0.1 * block.number)
            ),
        )
        for block in blocks(lambda _: 0.02)
    ]
    curve = fit(drifting)
    assert curve.drift == pytest.approx(0.09, abs=0.02)
    assert step_time(curve, 8, 500).error >= 0.09 * 0.02
    busy = fit(blocks(lambda _: 0.02), machine_load=1.0)
    assert (busy.machine_load, busy.drift) == (1.0, pytest.approx(0.05))


@pytest.mark.parametrize(
    ("deviations", "error"),
    [(((0.001,), (0.002,)), 0.0015), (((0.001,), (0, 0.002)), 0.00112), (((0.001,), (-0.001,)), 0)],
)
def test_between_two_loads_time_is_linear_and_errors_add_up_by_what_they_have_in_common(
    deviations, error
):
    """Errors of one cause add up, independent ones add in squares, and opposite ones cancel."""
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
    """By the share of their steps that falls into it."""
    clock = clocked(
        [(period(4, 0.01, engine_steps=100), plain(0.008, 0.001))],
        [(period(4, 0.02, engine_steps=50), plain(0.012, 0.003))],
    )
    step = clock.between(0.5, 1.5).plain  # 50 steps of the first second, 25 of the second
    assert step.seconds == pytest.approx((50 * 0.008 + 25 * 0.012) / 75)
    assert step.error == pytest.approx((50 * 0.001 + 25 * 0.003) / 75)


def test_a_step_counts_once_however_many_requests_are_in_it():
    """A request takes part in steps, so each of them weighs the same in its mean."""
    alone, crowded = period(1, 0.01, engine_steps=100), period(64, 0.02, engine_steps=50)
    clock = clocked([(alone, plain(0.01))], [(crowded, plain(0.02))])
    assert clock.between(0.0, 2.0).plain.seconds == pytest.approx(2 / 150)


def test_several_engines_count_by_the_requests_in_each():
    """A request is on any of them with that probability."""
    busy, idle = period(3, 0.01, engine_steps=100), period(1, 0.02, engine_steps=50)
    clock = clocked([(busy, plain(0.01)), (idle, plain(0.02))])
    assert clock.between(0.0, 1.0).plain.seconds == pytest.approx((300 * 0.01 + 50 * 0.02) / 350)


def test_nothing_is_known_beyond_the_polls_or_with_too_little_plain_time():
    """A stretch needs polls over its whole length, and a reference for nearly all of its steps."""
    assert clocked().between(0.0, 1.0) is None
    clock = clocked([(period(1, 0.01), plain(0.01))], [(period(99, 0.01), None)], [])
    assert clock.between(-0.1, 1.0) is None
    assert clock.between(0.0, 1.0) is not None
    assert clock.between(0.0, 2.0) is None
    assert clock.between(2.0, 3.0) is None  # nothing was decoded
    assert clock.between(0.5, 0.5) is None


def test_a_request_that_is_settled_after_the_last_poll_ends_with_it():
    """What lies after the last poll is not known yet."""
    assert clocked([(period(1, 0.01), plain(0.01))]).between(
        0.5, 7.0
    ).plain.seconds == pytest.approx(0.01)


def test_a_gap_or_a_clock_set_back_begins_anew():
    """Nothing from before it is mixed with what comes after."""
    clock = DecodeClock(900.0)
    clock.add(100.0, 101.0, [(period(1, 0.01), plain(0.01))])
    clock.add(50.0, 51.0, [(period(1, 0.02), plain(0.02))])
    assert clock.between(50.0, 51.0).plain.seconds == pytest.approx(0.02)
    assert clock.between(49.0, 51.0) is None


def test_the_clock_s_history_is_bounded():
    """It keeps the seconds that it was made for, whatever passes."""
    clock = DecodeClock(10.0)
    for at in range(10_000):
        clock.add(float(at), at + 1.0, [(period(1, 0.01), plain(0.01))])
        assert len(pickle.dumps(clock)) < 100 * (10 + 65)
    assert clock.between(9_991.0, 10_000.0).plain.seconds == pytest.approx(0.01)


def test_attention_adds_to_prefill_by_the_tokens_and_what_they_attend_to():
    """Cached tokens are attended to, although they are not computed."""
    paying = replace(CONTEXTS, attention_seconds=1e-8, attention_error=1e-9)
    steps = prefilling(1, 200.0)
    work = plain_work(steps)
    usual, more = (plain_token(times, steps) for times in (CONTEXTS, paying))
    each = steps.running * work.tokens * work.context * work.mixed / steps.generated

    assert more.seconds - usual.seconds == pytest.approx(1e-8 * each)
    assert more.error**2 - usual.error**2 == pytest.approx((1e-9 * each) ** 2)
    cached = plain_work(steps._replace(cached_tokens=10 * 500.0))
    assert cached.context == pytest.approx(work.context + 500)
