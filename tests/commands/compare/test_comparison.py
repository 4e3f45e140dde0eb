"""Differences are claimed if they exist, and only then."""

from dataclasses import replace

import pytest

from sidecar.commands.compare.comparison import compare
from sidecar.commands.compare.render import Gate, Result, gate, result, verdict
from sidecar.commands.sweep.workload import Load
from tests.commands.compare.made_sweeps import level, swept


def compared(before, after):
    return compare(before, after, names=("A", "B"))


def shown(comparison):
    return {one.metric for one in comparison.differences if one.is_shown}


def test_no_difference_is_claimed_between_two_runs_of_one_server():
    """Fifty pairs, fourteen differences each: none is claimed."""
    claimed = []
    for seed in range(50):
        before = swept(level(4 * seed), level(4 * seed + 1, temperature=1.0, acceptance=0.4))
        after = swept(level(4 * seed + 2), level(4 * seed + 3, temperature=1.0, acceptance=0.4))
        found = compared(before, after)
        claimed += [one for one in found.differences if one.is_shown]
        assert result(found) is Result.NO_DIFFERENCE or shown(found)
    assert len(claimed) <= 1


def test_a_faster_server_is_shown_and_described():
    found = compared(swept(level(1)), swept(level(2, tpot=0.007)))
    assert {"TPOT P50", "tokens/s"} <= shown(found)
    assert result(found) is Result.FASTER
    lines = list(verdict(found))
    assert lines[0] == "verdict: B is faster than A"
    assert any(line.startswith("  TPOT P50 is ") and "lower at temperature 0, 4 at once" in line for line in lines)
    assert result(compared(swept(level(2, tpot=0.007)), swept(level(1)))) is Result.SLOWER


def test_faster_here_and_slower_there_is_mixed():
    before = swept(level(1), level(2, temperature=1.0))
    after = swept(level(3, tpot=0.007), level(4, temperature=1.0, tpot=0.014))
    assert result(compared(before, after)) is Result.MIXED


def test_acceptance_at_another_number_of_tokens_is_not_compared_but_length_is():
    found = compared(swept(level(1, k=3)), swept(level(2, k=5)))
    differences = {one.metric: one for one in found.differences}
    assert differences["acceptance"].change is None
    assert differences["length"].is_shown
    assert any("numbers of speculative tokens differ" in note for note in found.notes)


def test_a_server_without_speculation_has_no_acceptance_to_compare():
    found = compared(swept(level(1, k=3)), swept(level(2, k=0, tpot=0.02)))
    differences = {one.metric: one for one in found.differences}
    assert (differences["acceptance"].after, differences["acceptance"].change) == (None, None)
    assert result(found) is Result.SLOWER
    assert not any("numbers of speculative tokens" in note for note in found.notes)


def test_nothing_is_claimed_from_one_round():
    """One round does not show how much the machine varies from minute to minute."""
    found = compared(swept(level(1), rounds=1), swept(level(2, tpot=0.02)))
    assert any("no speed is claimed from fewer than 4 rounds" in note for note in found.notes)
    assert shown(found) == set()
    assert result(found) is Result.INSUFFICIENT_DATA


def test_levels_of_one_side_only_are_left_out_with_a_note():
    found = compared(swept(level(1), level(2, temperature=1.0)), swept(level(3)))
    assert {str(one.level.workload) for one in found.differences} == {"0"}
    assert "levels measured on one side only are left out: 1" in found.notes


def test_shares_of_the_capacity_are_one_load_at_different_rates():
    def at(seed, rate):
        found = level(seed)
        return replace(found, level=replace(found.level, load=Load(rate=rate, share=0.8)))

    found = compared(swept(at(1, 2.0)), swept(at(2, 3.0)))
    assert found.differences
    assert next(one for one in found.differences if one.metric == "tokens/s").change is None


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
    found, lines = gate([compared(before, after)], limit)
    assert found is outcome
    assert bool(lines) == (outcome is not Gate.PASSED)
