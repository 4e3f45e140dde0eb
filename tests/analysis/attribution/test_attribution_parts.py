"""The parts of attribution that have a rule of their own."""

import math
import random

import pytest

from sidecar.analysis.attribution.admission import Admission
from sidecar.analysis.attribution.ledger import Ledger, Slot
from sidecar.analysis.attribution.overhang import expected_overhang, spread_of
from sidecar.analysis.attribution.window import Growth, Window, Windows, occupancy

GROWTH = Growth(40.0, 120.0, 60.0, 110.0, 10.0)


def windows(*, seconds=1.0, count=10, busy=None, growths=None):
    found = Windows(1e6)
    for number in range(count):
        growth = growths[number] if growths else GROWTH
        found.append(Window(number * seconds, (number + 1) * seconds, growth, 5.0, busy, broken=False))
    return found


def test_everyone_is_taken_up_at_once_without_a_limit():
    admission = Admission()
    admission.started("a", 1.0)
    admission.started("b", 2.0)
    assert admission.finished("b", 2.0, 3.0) == 2.0
    assert admission.finished("a", 1.0, 4.0) == 1.0


def test_those_who_wait_are_taken_up_in_order_as_others_end():
    admission = Admission()
    admission.limit_to(2)
    for number, name in enumerate("abcd"):
        admission.started(name, float(number))
    assert admission.finished("b", 1.0, 10.0) == 1.0
    assert admission.finished("a", 0.0, 12.0) == 0.0
    assert admission.finished("c", 2.0, 20.0) == 10.0
    assert admission.finished("d", 3.0, 21.0) == 12.0


def test_a_limit_found_late_corrects_what_was_thought_before():
    admission = Admission()
    for number, name in enumerate("abc"):
        admission.started(name, float(number))
    admission.finished("a", 0.0, 10.0)
    assert admission.finished("b", 1.0, 11.0) == 1.0
    assert admission.limit_to(1) == {"a": 0.0, "b": 10.0}
    assert admission.finished("c", 2.0, 12.0) == 11.0


def test_a_request_that_ends_while_thought_to_wait_has_run_in_another_ones_place():
    admission = Admission()
    admission.limit_to(1)
    admission.started("a", 0.0)
    admission.started("b", 0.001)
    assert admission.finished("b", 0.001, 5.0) == 0.001
    assert admission.finished("a", 0.0, 9.0) == 5.0


def test_the_order_of_requests_that_begin_at_once_is_in_doubt_where_one_of_them_waits():
    admission = Admission()
    admission.limit_to(2)
    for name, start in (("a", 0.0), ("b", 0.01), ("c", 0.02), ("d", 9.0)):
        admission.started(name, start)
    assert admission.doubt(0.01) == math.inf  # one of the three still waits
    admission.finished("a", 0.0, 10.0)
    assert admission.doubt(0.0) == admission.doubt(0.02) == pytest.approx(9.8)
    assert admission.doubt(9.0) == 0


def test_without_a_queue_nothing_is_in_doubt():
    admission = Admission()
    admission.started("a", 0.0)
    admission.started("b", 0.0)
    assert admission.doubt(0.0) == 0


def test_an_unknown_request_was_taken_up_at_its_start():
    assert Admission().finished("x", 3.0, 4.0) == 3.0


def test_the_oldest_is_forgotten_where_there_are_too_many():
    admission = Admission(most=2)
    assert [admission.started(name, at) for name, at in (("a", 0.0), ("b", 1.0), ("c", 2.0))] == [None, None, "a"]
    assert admission.oldest_start == 1.0


@pytest.mark.parametrize(("chance", "k"), [(0.3, 3), (0.8, 3), (0.6, 6), (0.95, 2)])
def test_the_overhang_is_that_of_requests_cut_at_a_length(chance, k):
    rng = random.Random(1)
    over, accepted, steps, count = 0, 0, 0, 20_000
    for _ in range(count):
        left = 60 + rng.randrange(40)
        while left > 0:
            step = 0
            while step < k and rng.random() < chance:
                step += 1
            steps, accepted, left = steps + 1, accepted + step, left - step - 1
        over -= left
    assert expected_overhang(accepted / steps, k, 1.0) == pytest.approx(over / count, rel=0.03)


def test_steps_that_seldom_draft_seldom_hold_the_end():
    always = expected_overhang(2.0, 3.0, 1.0)
    assert 0 < expected_overhang(2.0, 3.0, 0.1) < 0.3 * always
    assert expected_overhang(2.0, 3.0, 0.0) == expected_overhang(0.0, 3.0, 1.0) == 0


def test_all_or_nothing_spreads_more_than_chance():
    assert spread_of([800, 640, 512], 1000) == pytest.approx(1.0, abs=0.01)
    assert spread_of([500, 500, 500], 1000) > 1.05
    assert spread_of([], 10) == spread_of([1.0], 0) == 1.0


def test_the_clock_runs_evenly_through_a_busy_window_and_stands_still_while_idle():
    even, uneven = windows(), windows(busy=((0.5, 1.0),), count=1)
    assert even.steps(0, even.covering(2.25, 4.5), 2.25, 4.5) == pytest.approx(22.5)
    assert uneven.steps(0, (0, 0), 0.0, 0.5) == 0
    assert uneven.steps(0, (0, 0), 0.5, 0.75) == pytest.approx(5)


def test_moments_outside_the_windows_are_not_covered():
    found = windows()
    assert found.covering(-0.1, 5) is found.covering(5, 10.1) is None
    assert found.covering(0, 10) == (0, 9)


def test_old_windows_are_forgotten_and_the_clock_goes_on():
    found = Windows(100)
    for number in range(1000):
        found.append(Window(float(number), number + 1.0, GROWTH, 5.0, None, broken=False))
    assert len(found) < 200
    assert found.steps(0, found.covering(950, 960), 950, 960) == pytest.approx(100)


def test_occupancy_counts_requests_and_finds_the_parts_without_any():
    mean, busy = occupancy([(0.0, 0.2), (0.1, 0.3), (0.7, 5.0)], 0.0, 1.0)
    assert mean == pytest.approx(0.7)
    assert busy == ((0.0, 0.3), (0.7, 1.0))
    assert occupancy([(-1.0, 2.0)], 0.0, 1.0) == (1.0, None)
    assert occupancy([], 0.0, 1.0) == (0.0, None)


def test_what_requests_bring_is_all_there_however_it_is_spread():
    rng = random.Random(2)
    growths = [GROWTH._replace(steps=rng.uniform(0, 20)) for _ in range(50)]
    found = windows(count=50, growths=growths)
    ledger = Ledger(found, 1, memory=1e12)
    total = 0.0
    for _ in range(300):
        start = rng.uniform(0, 45)
        ledger.spread({Slot.TOKENS: 7.0}, start, start + rng.choice((0.1, 1.0, 4.9)))
        total += 7.0
    ledger.close(50.0, lambda window, brought: None)
    assert ledger.sums[Slot.TOKENS] == pytest.approx(total)


def test_closed_windows_stay_as_they_are():
    found = windows()
    ledger = Ledger(found, 1, memory=1e12)
    ledger.close(5.0, lambda window, brought: None)
    ledger.spread({Slot.TOKENS: 10.0}, 2.0, 7.0)
    seen = []
    ledger.close(10.0, lambda window, brought: seen.append(brought[Slot.TOKENS]))
    assert seen == pytest.approx([2, 2, 0, 0, 0])
