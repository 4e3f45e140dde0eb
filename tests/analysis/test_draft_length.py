"""The number of draft tokens that takes the least time, on published measurements."""

from itertools import pairwise

import pytest

from sidecar.analysis.advice import schedule, timed_advice, token_seconds, tokens_advice
from sidecar.analysis.speed.steps import StepCosts

# vLLM issue 20780: an 8B model, one request at a time; plain TPOT 7.07 ms. Length and TPOT by number of draft tokens.
PLAIN = 0.00707
TABLES = {
    "EAGLE-3": {2: (2.36, 4.32), 3: (2.79, 4.09), 4: (3.08, 4.05), 5: (3.32, 4.13), 6: (3.46, 4.20), 7: (3.54, 4.29)},
    "EAGLE-1": {2: (2.10, 4.37), 3: (2.29, 4.29), 4: (2.39, 4.48), 5: (2.43, 4.71), 6: (2.45, 4.94), 7: (2.47, 5.20)},
}


def rates(table, tokens):
    """Position rates that give the published lengths; the first two, of which only the sum is known, fall evenly."""
    first_two = table[2][0] - 1
    first = (-1 + (1 + 4 * first_two) ** 0.5) / 2  # q + q² = what the first two give
    lengths = [table[k][0] for k in range(2, tokens + 1)]
    return [first, first**2, *(after - before for before, after in pairwise(lengths))]


def costs(table, tokens):
    length, tpot = table[tokens]
    return StepCosts(actual=length * tpot / 1000, plain=PLAIN, drafted=tokens)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("tokens", [5, 6, 7])
def test_from_one_run_the_choice_costs_at_most_three_percent_more_than_the_best(name, tokens):
    table = TABLES[name]
    seconds = token_seconds(rates(table, tokens), costs(table, tokens))
    assert table[seconds.index(min(seconds))][1] <= 1.03 * min(tpot for _, tpot in table.values())


@pytest.mark.parametrize("name", TABLES)
def test_the_expected_times_are_near_the_published_ones(name):
    table = TABLES[name]
    found = [1000 * seconds for seconds in token_seconds(rates(table, 7), costs(table, 7))]
    assert found[0] == pytest.approx(7.07)
    for tokens, (_, tpot) in table.items():
        assert found[tokens] == pytest.approx(tpot, rel=0.08)


def test_fewer_tokens_are_advised_with_what_they_save():
    table = TABLES["EAGLE-1"]
    assert timed_advice(rates(table, 7), costs(table, 7), can_schedule=True) == (
        "Set num_speculative_tokens to 2 instead of 7: about 4.15 ms per token instead of 5.2 ms at this load."
    )


def test_none_are_advised_where_plain_decoding_is_the_fastest():
    found = timed_advice([0.6, 0.3, 0.1], StepCosts(actual=0.030, plain=0.010, drafted=3), can_schedule=True)
    assert found.startswith("At this load a token takes 10 ms without speculation and 15 ms with it: ")


def test_what_saves_little_is_not_advised():
    assert timed_advice([0.8, 0.6, 0.5], StepCosts(actual=0.015, plain=0.010, drafted=3), can_schedule=True) is None
    assert timed_advice([], StepCosts(actual=0.012, plain=0.010, drafted=3), can_schedule=True) is None


def test_a_number_of_draft_tokens_that_varies_gives_no_advice():
    """vLLM divides accepted tokens by position by all drafts, also those that had no such position."""
    varying = StepCosts(actual=0.030, plain=0.010, drafted=2.2)
    assert timed_advice([0.6, 0.3, 0.1], varying, can_schedule=True) is None
    assert schedule([0.6, 0.3, 0.1], {1: varying, 2: varying}) == []


def test_schedule_has_an_entry_for_each_stretch_of_loads():
    """Cheap drafts at light load, dear ones at heavy load; the entries are contiguous, as vLLM wants them."""
    found = schedule(
        [0.7, 0.5, 0.35],
        {
            1: StepCosts(actual=0.012, plain=0.010, drafted=3),
            2: StepCosts(actual=0.013, plain=0.010, drafted=3),
            8: StepCosts(actual=0.026, plain=0.012, drafted=3),
            16: StepCosts(actual=0.060, plain=0.015, drafted=3),
        },
    )
    assert found == [(1, 2, 3), (3, 8, 2), (9, 16, 0)]


def test_one_number_for_all_loads_needs_no_schedule():
    cheap = StepCosts(actual=0.012, plain=0.010, drafted=3)
    assert schedule([0.7, 0.5, 0.35], {1: cheap, 2: cheap}) == []


@pytest.mark.parametrize(
    ("acceptance", "position_rates", "advised"),
    [
        (
            0.33,
            (0.7, 0.45, 0.3, 0.15, 0.05),
            (
                "Acceptance rate 0.33: speculate fewer tokens, 2 instead of 5: "
                "the next one is accepted only 30% of the time."
            ),
        ),
        (
            0.18,
            (0.35, 0.12, 0.07),
            (
                "Acceptance rate 0.18: turn speculation off, or use another draft model: "
                "even the first token is accepted only 35% of the time."
            ),
        ),
        (0.2, (), "Acceptance rate 0.20: speculate fewer tokens."),
        (0.4, (0.5,), None),
        (0.8, (0.8,), None),
        (0.81, (0.9, 0.8), "Acceptance rate 0.81: speculate more tokens, as long as latency under load allows."),
    ],
)
def test_fewer_tokens_are_advised_as_far_as_positions_are_worth_it_or_more(acceptance, position_rates, advised):
    assert tokens_advice(acceptance, position_rates, fewer=0.4, more=0.8) == advised
