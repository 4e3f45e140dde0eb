"""Differences are claimed if they exist, and only then."""

from dataclasses import replace

import pytest

from sidecar.commands.compare.comparison import Result, compare
from sidecar.commands.compare.render import Gate, gate, verdict
from sidecar.commands.sweep.workload import Load
from tests.commands.compare.made_sweeps import level, swept


def compared(before, after):
    return compare(before, after, names=("A", "B"))


def shown(comparison):
    return [metric for level in comparison.levels for metric in level.shown]


def test_no_difference_is_claimed_between_two_runs_of_one_server():
    """Fifty pairs, fourteen differences each: none is claimed."""
    claimed = []
    for seed in range(50):
        before = swept(level(4 * seed), level(4 * seed + 1, temperature=1.0, acceptance=0.4))
        after = swept(level(4 * seed + 2), level(4 * seed + 3, temperature=1.0, acceptance=0.4))
        found = compared(before, after)
        claimed += shown(found)
        assert found.result is Result.NO_DIFFERENCE or shown(found)
    assert len(claimed) <= 1


def test_a_faster_server_is_shown_and_described():
    found = compared(swept(level(1)), swept(level(2, tpot=0.007)))
    assert {"TPOT P50", "tokens/s"} <= set(shown(found))
    assert found.result is Result.FASTER
    lines = list(verdict(found))
    assert lines[0] == "verdict: B is faster than A"
    assert any(line.startswith("  TPOT P50 is ") and "lower at temperature 0, concurrency 4" in line for line in lines)
    assert compared(swept(level(2, tpot=0.007)), swept(level(1))).result is Result.SLOWER


def test_faster_here_and_slower_there_is_mixed():
    before = swept(level(1), level(2, temperature=1.0))
    after = swept(level(3, tpot=0.007), level(4, temperature=1.0, tpot=0.014))
    assert compared(before, after).result is Result.MIXED


def test_acceptance_at_another_number_of_tokens_is_not_compared_but_length_is():
    found = compared(swept(level(1, k=3)), swept(level(2, k=5)))
    assert found.levels[0].changes["acceptance"] is None
    assert "length" in shown(found)
    assert any("numbers of speculative tokens differ" in note for note in found.notes)


def test_a_server_without_speculation_has_no_acceptance_to_compare():
    found = compared(swept(level(1, k=3)), swept(level(2, k=0, tpot=0.02)))
    assert (found.levels[0].after["acceptance"], found.levels[0].changes["acceptance"]) == (None, None)
    assert found.result is Result.SLOWER
    assert not any("numbers of speculative tokens" in note for note in found.notes)


def test_nothing_is_claimed_from_one_round():
    """One round does not show how much the machine varies from minute to minute."""
    found = compared(swept(level(1), rounds=1), swept(level(2, tpot=0.02)))
    assert any("fewer than 4 rounds are not enough to compare speed" in note for note in found.notes)
    assert (shown(found), found.result) == ([], Result.INSUFFICIENT_DATA)


def test_levels_of_one_side_only_are_left_out_with_a_note():
    found = compared(swept(level(1), level(2, temperature=1.0)), swept(level(3)))
    assert [str(one.level.workload) for one in found.levels] == ["0"]
    assert "left out, since only one sweep measured them: 1 level" in found.notes


def test_tokens_per_second_of_an_open_loop_are_what_was_sent():
    def at(seed):
        return replace(level(seed), level=replace(level(seed).level, load=Load(rate=2.0)))

    (found,) = compared(swept(at(1)), swept(at(2))).levels
    assert found.changes["tokens/s"] is None
    assert found.changes["TPOT P50"] is not None


@pytest.mark.parametrize(
    ("tpot", "requests", "limit", "outcome"),
    [
        (0.012, 400, 0.05, Gate.FAILED),
        (0.012, 400, 0.5, Gate.PASSED),
        (0.010, 4000, 0.05, Gate.PASSED),
        (0.010, 40, 0.01, Gate.UNDECIDED),
        (0.007, 4000, 0.05, Gate.PASSED),
    ],
)
def test_the_limit_on_slowness(tpot, requests, limit, outcome):
    before, after = swept(level(1, requests=requests)), swept(level(2, requests=requests, tpot=tpot))
    found, lines = gate(compared(before, after), limit)
    assert found is outcome
    assert bool(lines) == (outcome is not Gate.PASSED)
