"""The history of the counters."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.continuation import Totals
from sidecar.engine.names import Counter
from sidecar.engine.timeline import Timeline
from tests.engine.engine_tools import engine

DRAFTS, TOKENS = Counter.DRAFTS, Counter.GENERATION_TOKENS


def timeline(*readings, **options):
    """A timeline of (time, drafts, restarted)."""
    kept = Timeline(**{"history": 1000.0, **options})
    for at, value, *restarted in readings:
        kept.append(at, Totals(engine({DRAFTS: value} if value is not None else {}), bool(restarted and restarted[0])))
    return kept


def test_value_is_interpolated_exactly():
    kept = timeline((10, 100), (20, 200), (40, 200))
    assert [kept.value_at(DRAFTS, at) for at in (10, 12.5, 15, 20, 30, 40)] == [100, 125, 150, 200, 200, 200]


@pytest.mark.parametrize("at", [9.999, 40.001, math.inf, -math.inf, math.nan])
def test_there_is_no_value_outside_the_span(at):
    kept = timeline((10, 100), (40, 200))
    assert kept.value_at(DRAFTS, at) is None
    assert kept.growth(DRAFTS, at, 40) is None
    assert kept.growth(DRAFTS, 10, at) is None


def test_empty_timeline():
    kept = timeline()
    assert kept.times == []
    assert kept.value_at(DRAFTS, 0) is None
    assert kept.positions_growth(0, 1) == ()
    assert not kept.restarted_within(-math.inf, math.inf)


def test_growth():
    kept = timeline((10, 100), (20, 200), (40, 300))
    assert (kept.times[0], kept.times[-1]) == (10, 40)
    assert kept.growth(DRAFTS, 15, 30) == 100
    assert kept.growth(DRAFTS, 10, 40) == 200
    assert kept.growth(DRAFTS, 20, 20) == 0
    assert kept.growth(TOKENS, 10, 40) is None


def test_there_is_no_value_next_to_a_poll_without_it():
    kept = timeline((10, 100), (20, None), (30, 300))
    assert kept.value_at(DRAFTS, 10) == 100
    assert kept.value_at(DRAFTS, 30) == 300
    assert [kept.value_at(DRAFTS, at) for at in (11, 20, 25)] == [None, None, None]
    assert kept.growth(DRAFTS, 10, 30) == 200


def test_restarts_are_remembered():
    kept = timeline((10, 1), (20, 2, True), (30, 3))
    assert kept.restarted_within(10, 20)
    assert kept.restarted_within(19, 25)
    assert not kept.restarted_within(20, 30)
    assert not kept.restarted_within(10, 19)


@pytest.mark.parametrize("back", [30, 29.5, 5])
def test_clock_set_back_begins_the_history_anew(back):
    kept = timeline((10, 1), (20, 2, True), (30, 3))
    kept.append(back, Totals(engine({DRAFTS: 4}), restarted=False))
    assert kept.times == [back]
    assert kept.value_at(DRAFTS, back) == 4
    assert not kept.restarted_within(0, 100)
    kept.append(back + 1, Totals(engine({DRAFTS: 6}), restarted=False))
    assert kept.growth(DRAFTS, back, back + 1) == 2


def test_number_of_readings_is_bounded_by_count():
    kept = Timeline(history=1e9, max_readings=100)
    for at in range(5000):
        kept.append(float(at), Totals(engine({DRAFTS: at}), restarted=True))
        assert len(kept.times) <= 100 + 64
    assert kept.value_at(DRAFTS, 4950.5) == 4950.5
    assert len(kept._restarts) <= len(kept.times) + 1


def test_number_of_readings_is_bounded_by_time():
    kept = Timeline(history=100.0)
    for at in range(5000):
        kept.append(float(at), Totals(engine({DRAFTS: at}), restarted=False))
        assert len(kept.times) <= 100 + 64
        assert kept.times[0] <= max(at - 99, 0)


def test_positions_growth():
    kept = Timeline(history=1000)
    for at, positions in ((0, (10, 4)), (10, (20, 8)), (20, (20, 9))):
        kept.append(at, Totals(engine(positions=positions), restarted=False))
    assert kept.positions_growth(0, 20) == (10, 5)
    assert kept.positions_growth(5, 10) == (5, 2)
    assert kept.positions_growth(0, 21) == ()


def test_positions_growth_is_unknown_across_a_change_of_their_number():
    kept = Timeline(history=1000)
    for at, positions in ((0, (10,)), (10, (20, 8)), (20, (22, 9))):
        kept.append(at, Totals(engine(positions=positions), restarted=False))
    assert kept.positions_growth(0, 20) == ()
    assert kept.positions_growth(10, 20) == (2, 1)


@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 100)), min_size=2, max_size=30),
    st.lists(st.floats(0, 1), min_size=2, max_size=5),
)
def test_growth_of_neighbouring_windows_adds_up(steps, shares):
    kept = Timeline(history=1e6)
    at = total = 0.0
    for pause, growth in steps:
        at, total = at + pause, total + growth
        kept.append(at, Totals(engine({DRAFTS: total}), restarted=False))
    start, end = kept.times[0], kept.times[-1]
    cuts = sorted([start, end, *(min(start + s * (end - start), end) for s in shares)])
    parts = [kept.growth(DRAFTS, a, b) for a, b in pairwise(cuts)]
    assert all(part >= -1e-9 for part in parts)
    assert sum(parts) == pytest.approx(kept.growth(DRAFTS, start, end))
