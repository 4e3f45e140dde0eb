"""How many tokens to draft: by time on published measurements, by acceptance, and by load."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from sidecar.analysis.advice import (
    Advice,
    Direction,
    TokensAdvice,
    advise,
    emitted_rates,
    fits,
    schedule,
    timed_advice,
    token_seconds,
    tokens_advice,
)
from sidecar.analysis.evidence import Evidence
from sidecar.analysis.judgement import Judgement
from sidecar.analysis.speed.steps import StepCosts
from sidecar.analysis.verdict import judge
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds
from tests.analysis.analysis_tools import evidence, window

# vLLM issue 20780: an 8B model, one request at a time; plain TPOT 7.07 ms. Length and TPOT by
# number of draft tokens.
PLAIN = 0.00707
TABLES = {
    "EAGLE-3": {
        2: (2.36, 4.32),
        3: (2.79, 4.09),
        4: (3.08, 4.05),
        5: (3.32, 4.13),
        6: (3.46, 4.20),
        7: (3.54, 4.29),
    },
    "EAGLE-1": {
        2: (2.10, 4.37),
        3: (2.29, 4.29),
        4: (2.39, 4.48),
        5: (2.43, 4.71),
        6: (2.45, 4.94),
        7: (2.47, 5.20),
    },
}


def load(actual, plain=0.010, drafted=3):
    return StepCosts(actual=actual, plain=plain, drafted=drafted)


CHEAP = load(0.012)


def rates(table, tokens):
    """Position rates that give the published lengths.

    The first two, of which only the sum is known, fall evenly.
    """
    first_two = table[2][0] - 1
    first = (-1 + (1 + 4 * first_two) ** 0.5) / 2  # q + q² = what the first two give
    lengths = [table[k][0] for k in range(2, tokens + 1)]
    return [first, first**2, *(after - before for before, after in pairwise(lengths))]


def costs(table, tokens):
    length, tpot = table[tokens]
    return load(length * tpot / 1000, PLAIN, tokens)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("tokens", [5, 6, 7])
def test_from_one_run_the_choice_costs_at_most_three_percent_more_than_the_best(name, tokens):
    """Published runs at other numbers of draft tokens tell what the best would have been."""
    table = TABLES[name]
    seconds = token_seconds(rates(table, tokens), costs(table, tokens))
    assert table[seconds.index(min(seconds))][1] <= 1.03 * min(tpot for _, tpot in table.values())


@pytest.mark.parametrize("name", TABLES)
def test_the_expected_times_are_near_the_published_ones(name):
    """Within 8 %, from the acceptance and the time of the run with seven tokens alone."""
    table = TABLES[name]
    milliseconds = [1000 * seconds for seconds in token_seconds(rates(table, 7), costs(table, 7))]
    assert milliseconds[0] == pytest.approx(7.07)
    for tokens, (_, tpot) in table.items():
        assert milliseconds[tokens] == pytest.approx(tpot, rel=0.08)


@pytest.mark.parametrize(
    ("position_rates", "step", "direction", "seconds"),
    [
        (
            rates(TABLES["EAGLE-1"], 7),
            costs(TABLES["EAGLE-1"], 7),
            (Direction.FEWER, 2),
            (0.00415, 0.0052),
        ),
        ([0.6, 0.3, 0.1], load(0.030), (Direction.NONE, 0), (0.010, 0.015)),
    ],
)
def test_by_time_the_number_of_tokens_that_takes_the_least_is_advised(
    position_rates, step, direction, seconds
):
    """None at all where even one draft token costs more than it gives."""
    advice = timed_advice(position_rates, step, 0.03)
    assert (advice.direction, advice.best, advice.now) == (*direction, len(position_rates))
    assert (advice.best_seconds, advice.now_seconds) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(("name", "fitting"), [("EAGLE-3", 4), ("EAGLE-1", 3)])
def test_a_number_fits_if_by_its_own_run_neither_fewer_nor_more_can_save_what_is_worthwhile(
    name, fitting
):
    """The published runs at other numbers agree: none was 3 % faster."""
    table = TABLES[name]
    found = [k for k in table if fits(rates(table, k), costs(table, k), 0.03)]
    assert found == [fitting]
    assert min(tpot for _, tpot in table.values()) > 0.97 * table[fitting][1]


def test_of_one_draft_token_it_is_not_said_that_more_would_not_help():
    """On the lab, 16 at once took a tenth less time with three: a draft has costs of its own."""
    assert not fits([0.71], load(0.01745, drafted=1), 0.03)


def test_a_token_is_never_accepted_more_often_than_the_one_before_it():
    """With a schedule, the rates of later positions are of other requests."""
    assert token_seconds([0.5, 0.8, 0.3], load(0.02)) == token_seconds([0.5, 0.5, 0.3], load(0.02))


@pytest.mark.parametrize("position_rates", [[0.8, 0.6, 0.5], []])
def test_a_change_that_saves_little_time_is_not_advised(position_rates):
    """Nor is one where no acceptance by position is known."""
    assert timed_advice(position_rates, load(0.015), 0.03) is None


def test_a_number_of_draft_tokens_that_varies_gives_no_advice_by_time():
    """vLLM divides accepted tokens by position by all drafts, even those without that position."""
    varying = load(0.030, drafted=2.2)
    assert timed_advice([0.6, 0.3, 0.1], varying, 0.03) is None
    assert not fits([0.8, 0.5, 0.35], load(0.017, drafted=2.2), 0.03)
    assert fits([0.8, 0.5, 0.35], load(0.017), 0.03)
    assert schedule([0.6, 0.3, 0.1], {1: varying, 2: CHEAP}) == []


@pytest.mark.parametrize(
    ("acceptance", "position_rates", "wanted", "expected"),
    [
        (
            0.33,
            (0.7, 0.45, 0.3, 0.15, 0.05),
            Direction.FEWER,
            {"direction": Direction.FEWER, "best": 2, "next_rate": 0.3},
        ),
        (
            0.18,
            (0.35, 0.12, 0.07),
            Direction.FEWER,
            {"direction": Direction.NONE, "best": 0, "next_rate": 0.35},
        ),
        (0.2, (), Direction.FEWER, {"direction": Direction.FEWER}),
        (0.4, (0.5,), None, None),
        (0.81, (0.9, 0.8), Direction.MORE, {"direction": Direction.MORE}),
    ],
)
def test_by_acceptance_tokens_are_advised_as_far_as_positions_are_worth_it(
    acceptance, position_rates, wanted, expected
):
    """Without times a position is worth it from an acceptance rate of 0.4 on."""
    advice = tokens_advice(acceptance, position_rates, wanted, least=0.4)
    now = len(position_rates)

    assert advice == (expected and TokensAdvice(now=now, acceptance=acceptance, **expected))


def simulated(rates, output_tokens, requests=20_000):
    """By position, the tokens that are accepted per step, and those that requests get.

    Requests of a fixed length are simulated: what is accepted after the last token is lost.
    """
    draws = Random(1)
    accepted_at = [0] * len(rates)
    emitted_at = [0] * len(rates)
    steps = 0
    for _ in range(requests):
        left = output_tokens - 1
        while left > 0:
            steps += 1
            accepted = 0
            for position, rate in enumerate(rates):
                before = rates[position - 1] if position else 1.0
                if draws.random() >= rate / before:
                    break
                accepted_at[position] += 1
                emitted_at[position] += position < left
                accepted += 1
            left -= 1 + accepted

    return [count / steps for count in accepted_at], [count / steps for count in emitted_at]


@pytest.mark.parametrize(
    ("rates", "output_tokens"),
    [
        ((0.9, 0.81, 0.73), 10),
        ((0.9, 0.81, 0.73, 0.66, 0.59, 0.53, 0.48), 10),
        ((0.8, 0.64), 200),
    ],
)
def test_lengths_count_the_tokens_that_requests_got(rates, output_tokens):
    """Of accepted tokens after a stop inside a draft, no request got any (vLLM issue 56101)."""
    accepted, emitted = simulated(rates, output_tokens)
    found = emitted_rates(accepted, sum(emitted) / sum(accepted))

    assert sum(found) == pytest.approx(sum(emitted))
    assert found == pytest.approx(emitted, abs=0.08)
    assert emitted_rates(accepted, None) == tuple(accepted)


def test_a_schedule_has_an_entry_for_each_stretch_of_loads():
    """Cheap drafts at light load, dear ones at heavy load.

    The entries are contiguous, as vLLM wants them.
    """
    loads = {1: CHEAP, 2: load(0.013), 8: load(0.026, 0.012), 16: load(0.060, 0.015)}
    assert schedule([0.7, 0.5, 0.35], loads) == [(1, 2, 3), (3, 8, 2), (9, 16, 0)]


@pytest.mark.parametrize(
    ("running", "entries"),
    [
        (None, [(1, 2, 3), (3, 8, 2), (9, 16, 0)]),
        (2.0, [(1, 2, 3), (3, 8, 2), (9, 16, 0)]),  # far below
        (5.0, [(1, 2, 3), (3, 8, 2), (9, 10, 1), (11, 16, 0)]),
        (8.5, [(1, 2, 3), (3, 8, 2), (9, 16, 1)]),
        (40.0, [(1, 2, 3), (3, 8, 2), (9, 16, 0)]),  # far above
    ],
)
def test_a_schedule_does_not_end_drafting_at_the_usual_load(running, entries):
    """There vLLM would draft at one step and not at the next (vLLM issue 49548)."""
    loads = {1: CHEAP, 2: load(0.013), 8: load(0.026, 0.012), 16: load(0.060, 0.015)}
    scheduled = Speculation("eagle3", 3, per_batch_size=True)
    given = replace(
        evidence(0.5, speculation=scheduled, costs=CHEAP),
        costs_by_load=loads,
        running=running,
    )
    accepted = replace(
        given.window,
        accepted_per_position=(700.0, 500.0, 350.0),
        drafted_per_position=(1000.0, 1000.0, 1000.0),
    )
    assert advise(given, accepted, Thresholds(), wanted=None).schedule == tuple(entries)


def test_one_number_for_all_loads_needs_no_schedule():
    """A schedule whose entries are all alike is none."""
    assert schedule([0.7, 0.5, 0.35], {1: CHEAP, 2: CHEAP}) == []


def advice_on(evidence_, before=None):
    judged = judge(evidence_, Thresholds())
    return advise(
        evidence_, evidence_.window, Thresholds(), wanted=judged.wanted_tokens, before=before
    )


def test_by_time_the_advice_is_on_the_requests_that_were_timed_even_if_an_hour_is_judged():
    """Costs of five minutes and acceptance of an hour are of different requests."""
    recent = evidence(0.7, costs=load(0.015), accepted_per_position=(840, 720, 610))
    hour = window(0.4, accepted_per_position=(700, 300, 100))
    assert advise(recent, hour, Thresholds(), wanted=None).tokens is None
    assert timed_advice(hour.position_rates, load(0.015), 0.03) is not None


def test_advice_by_time_that_was_given_stays_until_it_would_gain_half_as_much():
    """So that it does not flap where it gains about the 3 % that are worthwhile."""
    near = evidence(0.5, costs=load(0.0184), accepted_per_position=(700, 450, 330))
    given = advice_on(evidence(0.3, costs=load(0.02), accepted_per_position=(600, 200, 100)))

    assert given.tokens is not None
    assert advice_on(near).tokens is None
    assert advice_on(near, before=given).tokens is not None


def test_advice_by_acceptance_does_not_flicker_around_its_threshold():
    """Below 0.40 fewer tokens are advised, and until the rate is 0.42."""
    last = Judgement()
    directions = []
    for rate in (0.41, 0.395, 0.405, 0.399, 0.415, 0.421, 0.41, 0.79, 0.81, 0.79, 0.77):
        last = judge(evidence(rate), Thresholds(), before=last)
        directions.append(last.wanted_tokens)

    fewer, more = Direction.FEWER, Direction.MORE
    assert directions == [None, *[fewer] * 4, None, None, None, more, more, None]


@pytest.mark.parametrize(("rate", "direction"), [(0.85, Direction.MORE), (0.75, None), (0.2, None)])
def test_where_time_advises_no_fewer_tokens_acceptance_may_advise_more_but_not_fewer(
    rate, direction
):
    """Time knows what a draft token costs, and no rate below the rule of thumb refutes it."""
    tokens = advice_on(evidence(rate, costs=CHEAP, accepted_per_position=(900, 850, 800))).tokens
    assert (tokens and tokens.direction) is direction


def test_more_tokens_are_not_advised_by_acceptance_where_time_says_that_they_cannot_help():
    """A token that is accepted as often as the last one would cost what it gives."""
    dear = evidence(0.85, costs=load(0.0295), accepted_per_position=(900, 850, 800))
    assert advice_on(dear) == Advice(fitting=3)
    cheap = evidence(0.85, costs=CHEAP, accepted_per_position=(900, 850, 800))
    assert advice_on(cheap).fitting is None
    untimed = evidence(0.85, accepted_per_position=(900, 850, 800))
    assert advice_on(untimed).fitting is None


def test_where_another_number_fits_at_another_load_none_is_said_to_fit():
    """The schedule is the advice."""
    accepted = window(0.55, accepted_per_position=(800, 500, 350))
    how = Speculation("eagle3", 3)
    one = Evidence(window=accepted, costs=load(0.017), speculation=how)
    assert advice_on(one).fitting == 3
    loads = {4: CHEAP, 8: load(0.05)}
    assert advice_on(replace(one, costs_by_load=loads)).fitting is None


@pytest.mark.parametrize(
    "speculation", [Speculation("dflash", 12), Speculation("eagle3", 3, adaptive_verification=True)]
)
def test_a_method_without_the_rule_of_thumb_gets_no_advice(speculation):
    """One-pass drafts and adaptive verification have rates that say nothing of a token's cost."""
    assert advice_on(evidence(0.2, speculation=speculation)) == Advice()


@pytest.mark.parametrize(
    ("changes", "entries"),
    [
        ({"speculation": Speculation("eagle3", 3)}, ((1, 4, 3), (5, 8, 0))),
        ({"speculation": Speculation("custom_class", 3)}, ()),
        ({"speculation": Speculation("draft_model", 3)}, ((1, 4, 3), (5, 8, 0))),
        ({"speculation": Speculation("draft_model", 3), "runs_v2": True}, ()),
        ({"speculation": Speculation("eagle3", 3), "runs_v2": True}, ((1, 4, 3), (5, 8, 0))),
        ({"speculation": Speculation("eagle3", 3), "is_data_parallel": True}, ()),
        ({}, ()),
    ],
)
def test_a_schedule_is_advised_only_where_vllm_is_known_to_follow_it(changes, entries):
    """Not with a class of its own, with data parallelism, or where the method is unknown.

    On model runner V2 a draft model makes all drafts whatever the schedule says, and gains nothing.
    """
    loads = {4: CHEAP, 8: load(0.05)}
    accepted = window(0.6, accepted_per_position=(800, 600, 400))
    advice = advice_on(Evidence(window=accepted, costs=CHEAP, costs_by_load=loads, **changes))
    assert (advice.schedule, advice.can_schedule) == (entries, bool(entries))


def test_where_a_schedule_is_in_force_the_advice_is_on_the_schedule():
    """One number of tokens for all loads would undo it."""
    scheduled = Speculation("eagle3", 3, per_batch_size=True)
    for rate in (0.2, 0.55, 0.9):
        assert advice_on(evidence(rate, speculation=scheduled)).tokens is None
    varied = Evidence(
        window=window(0.6, accepted_per_position=(700, 400), drafted_per_position=(1000, 800)),
        speculation=scheduled,
        costs=load(0.03, drafted=1.8),
        costs_by_load={1: load(0.011, drafted=2), 8: load(0.03, drafted=1)},
    )
    assert advice_on(varied) == Advice(schedule=((1, 1, 2), (2, 8, 0)), can_schedule=True)
