"""Plain step times, read between the loads measured.

Their mean is known over any stretch of time.
"""

import pickle
from dataclasses import replace
from math import sqrt

import pytest

from sidecar.analysis.speed.clock import DecodeClock
from sidecar.analysis.speed.plain import (
    Beside,
    PlainWork,
    beside,
    covers,
    plain_token,
    plain_wait,
    plain_work,
    prefill_time,
    step_time,
    uncovered,
)
from sidecar.analysis.speed.withheld import Withheld
from sidecar.settings.baselines import PlainStepTimes, StepLaw
from tests.analysis.decoding import period, plain

CURVE = PlainStepTimes(running=(1.0, 4.0, 16.0), seconds=(0.01, 0.011, 0.035), context=100.0)


def test_between_the_loads_measured_a_step_is_linear():
    """A law with a knee, as of memory and then compute, needs no model of it."""
    for load, seconds in zip(CURVE.running, CURVE.seconds, strict=True):
        assert step_time(CURVE, load).seconds == pytest.approx(seconds)
    assert step_time(CURVE, 10).seconds == pytest.approx(0.023)


@pytest.mark.parametrize("load", [0.5, 17.5, 100])
def test_nothing_is_claimed_beyond_the_loads_measured(load):
    """Below the lowest load and above the highest, no step time is made up."""
    assert not covers(CURVE, load)
    assert uncovered(CURVE, period(load, 0.01)) is Withheld.LOAD
    assert beside(CURVE, period(load, 0.01)) == Beside()


def test_plain_decoding_beside_a_load_has_its_wait_first_token_and_throughput():
    curve = replace(CURVE, first_token_seconds=(0.1, 0.4, 1.6))
    found = beside(curve, period(10, 0.02))
    assert (found.wait_seconds, found.first_token_seconds) == pytest.approx((0.023, 1.0))
    assert found.tokens_per_second == pytest.approx(10 / 0.023)
    assert beside(CURVE, period(10, 0.02)).first_token_seconds is None
    assert beside(None, period(1, 0.01)) == Beside()


CONTEXTS = PlainStepTimes(
    running=(1.0, 8.0),
    seconds=(0.01, 0.02),
    context=1000.0,
    contexts=(100.0, 2000.0),
    context_seconds=(1e-6, 8e-6),
    prefill_seconds=2e-5,
)
ONE_CONTEXT = replace(CONTEXTS, contexts=None, context_seconds=())


def test_a_step_grows_with_the_context_in_proportion_to_the_requests():
    """How much is interpolated between the loads."""
    assert step_time(CONTEXTS, 8, 1000).seconds == pytest.approx(0.02)
    assert step_time(CONTEXTS, 8, 2000).seconds == pytest.approx(0.028)
    assert step_time(CONTEXTS, 4.5, 0).seconds == pytest.approx(0.015 - 0.0045)


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
    ],
)
def test_beyond_the_measured_contexts_nothing_is_claimed(times, context, why):
    """A context may be half as long again as the longest that was measured."""
    steps = period(8, 0.02, context=context)
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


@pytest.mark.parametrize(("tokens", "seconds"), [(2000, 0.0301), (600, 0.0021), (200, 0.0)])
def test_what_prefill_adds_to_a_plain_token_is_its_time_shared_by_the_tokens(tokens, seconds):
    """One request at a time, and each of ten prompts is a step; a GPU hides 500 tokens."""
    hiding = replace(CONTEXTS, hidden_tokens=500.0)
    steps = prefilling(1, tokens * 10 / 100)
    step = step_time(hiding, plain_work(steps).decodes, 1000)
    each = plain_token(hiding, steps).seconds - step.seconds

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


def mixed(tokens, decodes=1.0, context=0.0):
    """A step in which so many requests decode, and a prompt prefills."""
    return PlainWork(
        steps=1.0, at_once=decodes, decodes=decodes, mixed=1.0, tokens=tokens, context=context
    )


def test_requests_that_decode_take_up_what_a_gpu_hides():
    hiding = replace(CONTEXTS, hidden_tokens=500.0)
    assert prefill_time(hiding, mixed(499.0)).seconds == 0
    assert prefill_time(hiding, mixed(509.0)).seconds == pytest.approx(10 * 2e-5)
    assert prefill_time(hiding, mixed(509.0, 8.0)).seconds == pytest.approx(17 * 2e-5)


def test_where_each_token_reads_weights_of_its_own_a_prompt_fills_the_level():
    """As in a mixture of experts: a step with a prompt reads as many as the highest load does."""
    experts = replace(CONTEXTS, by_tokens=True, prefill_seconds=0.0)
    level = [
        seconds - 1000 * more for seconds, more in zip((0.01, 0.02), (1e-6, 8e-6), strict=True)
    ]
    assert prefill_time(experts, mixed(900.0)).seconds == pytest.approx(level[1] - level[0])
    assert prefill_time(experts, mixed(3.5)).seconds == pytest.approx((level[1] - level[0]) / 2)
    assert prefill_time(experts, mixed(900.0, 8.0)).seconds == 0


def rounds(*factors):
    """The law without each of as many rounds, that differ in the machine's speed."""
    return tuple(
        StepLaw(
            seconds=tuple(factor * one for one in CONTEXTS.seconds),
            context_seconds=CONTEXTS.context_seconds,
            prefill_seconds=factor * 2e-5,
        )
        for factor in factors
    )


def test_the_error_of_a_time_is_how_it_moves_without_each_round():
    """The jackknife's; of six rounds it is 2.57 ÷ 1.96 times what it would be of many."""
    uneven = replace(CONTEXTS, rounds=rounds(0.97, 1.03, 0.99, 1.01, 1.0, 1.0))
    spread = sqrt(5 / 6 * 2 * (0.03**2 + 0.01**2)) * 2.57 / 1.96
    assert step_time(uneven, 8).error == pytest.approx(spread * 0.02, rel=0.01)
    assert prefill_time(uneven, mixed(1000.0)).error == pytest.approx(spread * 0.02, rel=0.01)
    # What moves everything alike does not average out.
    token = plain_token(uneven, prefilling(8, 5.0))
    assert token.error == pytest.approx(spread * token.seconds, rel=0.02)
    assert step_time(replace(CONTEXTS, drift=0.03), 8).error == pytest.approx(0.03 * 0.02)


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
    paying = replace(CONTEXTS, attention_seconds=1e-8)
    steps = prefilling(1, 200.0)
    work = plain_work(steps)
    usual, more = (plain_token(times, steps) for times in (CONTEXTS, paying))
    each = steps.running * work.tokens * work.context * work.mixed / steps.generated

    assert more.seconds - usual.seconds == pytest.approx(1e-8 * each)
    cached = plain_work(steps._replace(cached_tokens=10 * 500.0))
    assert cached.context == pytest.approx(work.context + 500)
