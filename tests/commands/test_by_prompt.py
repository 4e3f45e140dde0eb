"""Acceptance is compared by prompt: another round of the same prompts is no new evidence."""

from random import Random

import pytest

from specdec_tools.measuring.client import Sample
from specdec_tools.measuring.comparison import compare
from specdec_tools.measuring.sweep_result import LevelResult
from tests.commands.sweep_tools import LEVEL, measured, measured_sweep, simulated, sweep_of

ROUNDS = 8
STEPS = 40
K = 3


def answered(prompt, rate):
    """A reply of whose draft tokens this share was accepted."""
    accepted = round(min(max(rate, 0.05), 0.95) * STEPS * K)
    return Sample(0.0, 0.1, 0.02, 128, STEPS, STEPS * K, accepted, (STEPS, 0, 0, 0), prompt)


def drafts_pair(seed, *, prompts=32, requests=32, better=0.0, own=0.1, by_round=0.0):
    """Two drafts on the same prompts, some of which are harder than others for both.

    Each draft is better or worse at a prompt by ``own``, the same in each round, and a reply
    differs from round to round by ``by_round``. The second is better by so much on average.
    """
    random = Random(seed)
    hardness = [random.gauss(0.6, 0.11) for _ in range(prompts)]

    def sweep(mean):
        rates = [mean + rate + random.gauss(0, own) for rate in hardness]
        rounds = []
        for _ in range(ROUNDS):
            numbers = (number % prompts for number in range(requests))
            rounds.append(
                measured(
                    answered(number, rates[number] + random.gauss(0, by_round))
                    for number in numbers
                )
            )
        return sweep_of(LevelResult(level=LEVEL, rounds=tuple(rounds)))

    return sweep(0.0), sweep(better)


def acceptance(pair):
    (one,) = [one for one in compare(*pair, names=("A", "B")).changes if one.metric == "acceptance"]
    return one


def claimed(pairs, **given):
    """In how many pairs of drafts one is called better or worse."""
    return sum(acceptance(drafts_pair(seed, **given)).effect is not None for seed in range(pairs))


def test_equally_good_drafts_are_not_called_different_however_often_the_prompts_are_repeated():
    """Where all of 32 prompts are sent in each of eight rounds."""
    assert claimed(20) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"prompts": 20, "requests": 50},  # the built-in ones, some of them twice a round
        {"prompts": 200, "requests": 200, "own": 0.15},
        {"prompts": 6, "requests": 6},
        {"by_round": 0.1},  # sampled
    ],
)
def test_of_400_pairs_of_equally_good_drafts_at_most_5_percent_are_called_different(given):
    assert claimed(400, **given) <= 20


def test_a_better_draft_is_found_by_pairing_the_prompts():
    """Better by 5 points, on prompts that differ by 11: each draft alone is known to 4 points."""
    for seed in range(10):
        one = acceptance(drafts_pair(seed, better=0.05, own=0.02))

        assert one.effect == "higher"
        assert one.before.error > 0.03
        assert one.difference.error < 0.03


def test_other_prompts_are_compared_without_pairs():
    """The hardness of each side's prompts then adds to the error."""
    before, after = drafts_pair(1, own=0.02)
    _, others = drafts_pair(1, own=0.02, prompts=31)
    together = acceptance((before, after)).difference.error
    apart = acceptance((before, others)).difference.error

    assert apart > 2 * together


def test_the_errors_of_a_level_are_those_of_its_prompts():
    """Of independent prompts: t times their standard deviation over the root of their number."""
    rates = [0.3, 0.5, 0.6, 0.7, 0.9]
    rounds = [measured(answered(number, rate) for number, rate in enumerate(rates))] * ROUNDS
    level = LevelResult(level=LEVEL, rounds=tuple(rounds))
    one = acceptance((sweep_of(level), sweep_of(level)))
    t = 2.776  # at 95 % with 4 degrees: the two are the same, so no change adds an uncertainty

    assert one.before.value == pytest.approx(0.6)
    assert one.before.error == pytest.approx(t * 0.2236 / 5**0.5, rel=0.001)
    assert (one.change.error, one.effect) == (0.0, None)


@pytest.mark.parametrize(
    "replies",
    [
        [answered(None, rate / 10) for rate in range(1, 10)],  # of a tool that does not say
        [answered(0, 0.5)] * 9,
        [answered(number, 0.5 + number / 10) for number in range(3)],
    ],
)
def test_without_four_known_prompts_the_acceptance_has_no_error(replies):
    level = LevelResult(level=LEVEL, rounds=(measured(replies),) * ROUNDS)
    one = acceptance((sweep_of(level), sweep_of(level)))

    assert one.before.value > 0
    assert (one.before.error, one.change.error, one.effect) == (None, None, None)


async def test_each_reply_knows_its_prompt():
    """Equal ones are one prompt; the order of the ends may be another."""
    async with simulated() as vllm:
        result = await measured_sweep(
            vllm.url, ("one", "two", "one", "three"), count=6, temperatures=(0.0,)
        )
    (level,) = result.levels

    assert sorted(sample.prompt for sample in level.whole.samples) == [0, 0, 0, 1, 1, 3]
