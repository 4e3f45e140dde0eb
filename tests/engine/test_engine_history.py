"""Counters carried on across restarts, and what is kept of their past."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.continuation import Continuation, Totals
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.snapshot import HistogramReading
from sidecar.engine.timeline import Span, Timeline
from tests.engine.engine_tools import engine

DRAFTS, TOKENS = Counter.DRAFTS, Counter.GENERATION_TOKENS


def carried(*steps):
    """The totals after each step: (snapshot, restarted)."""
    continuation = Continuation()
    return [continuation.advance(snapshot, restarted=restarted) for snapshot, restarted in steps]


def drafts(*steps):
    return [
        t.engine.counters.get(DRAFTS)
        for t in carried(*((engine({DRAFTS: v} if v is not None else {}), r) for v, r in steps))
    ]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(100, None), (100, None), (130, None)], [100, 100, 130]),  # begins at vLLM's value
        ([(100, None), (0, None), (30, None)], [100, 100, 130]),
        ([(100, None), (20, None)], [100, 120]),  # what was counted since a restart counts
        ([(100, False), (20, True), (50, False)], [100, 120, 150]),
        ([(100, False), (120, True)], [100, 220]),  # a known restart after which vLLM counted past the old value
        ([(100, False), (120, None)], [100, 120]),  # an unknown one can't be told from growth
        ([(100, False), (90, False), (95, False)], [100, 100, 105]),  # known to be the same process
        ([(100, None), (None, None), (130, None)], [100, None, 130]),  # gone for a poll
        ([(100, None), (None, None), (None, True), (30, False)], [100, None, None, 130]),
        ([(100, None), (None, None), (30, None)], [100, None, 130]),
        ([(None, None), (40, None), (50, None)], [None, 40, 50]),
        ([(0, None), (0, True), (0, True), (5, False)], [0, 0, 0, 5]),
        ([(10, None), (3, None), (2, None), (1, None)], [10, 13, 15, 16]),
    ],
)
def test_totals(steps, expected):
    assert drafts(*steps) == expected


def test_restart_is_told_by_any_counter_or_histogram():
    grown = engine({DRAFTS: 20, TOKENS: 5}, ttft=(1, 2, 3))
    for fallen in (engine({DRAFTS: 30, TOKENS: 4}), engine({DRAFTS: 30, TOKENS: 6}, ttft=(0, 0, 2))):
        first, second = carried((grown, None), (fallen, None))
        assert not first.restarted
        assert second.restarted
        assert second.engine.counters[DRAFTS] == 50


def test_a_known_process_did_not_restart_whatever_fell():
    totals = carried((engine({DRAFTS: 20}), False), (engine({DRAFTS: 1}), False))
    assert not totals[1].restarted


def test_positions_are_carried_on_and_may_become_more_or_fewer():
    totals = carried(
        (engine(positions=(10, 5)), None),
        (engine(positions=(12, 6)), None),
        (engine(positions=(3, 2, 1)), True),
        (engine(positions=()), False),
        (engine(positions=(4, 2, 2)), False),
        (engine(positions=(1,)), True),
    )
    assert [t.engine.accepted_per_position for t in totals] == [
        (10, 5), (12, 6), (15, 8, 1), (), (16, 8, 2), (17, 8, 2),
    ]  # fmt: skip


def test_histograms_are_carried_on():
    totals = carried((engine(ttft=(1, 2, 3)), None), (engine(ttft=(0, 1, 1)), None), (engine(ttft=(0, 1, 2)), None))
    assert [t.engine.histograms[Phase.TTFT].counts for t in totals] == [(1, 2, 3), (1, 3, 4), (1, 3, 5)]


def test_histogram_with_other_buckets_begins_anew():
    other = (0.5, math.inf)
    totals = carried((engine(ttft=(1, 2, 3)), None), (engine(ttft=(7, 9), edges=other), True))
    assert totals[1].engine.histograms[Phase.TTFT] == HistogramReading(other, (7, 9))


def test_gauges_are_those_of_the_moment():
    totals = carried((engine(gauges={Gauge.KV_CACHE_USAGE: 0.9}), None), (engine(gauges={}), None))
    assert totals[1].engine.gauges == {}


_LIVES = st.lists(  # of each process: of each poll the growth of two counters, or None where the page lacks the counter
    st.lists(
        st.tuples(st.none() | st.integers(0, 50), st.none() | st.integers(0, 50), st.integers(0, 9)),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=5,
)


@given(_LIVES, st.booleans())
@settings(max_examples=400)
def test_totals_never_fall_and_equal_the_true_growth_where_restarts_are_known(lives, known):
    continuation = Continuation()
    last = {}
    true = {DRAFTS: 0, TOKENS: 0}
    first_poll = True
    for life in lives:
        raw = {DRAFTS: 0, TOKENS: 0}
        counts = 0
        for poll, (d, t, observed) in enumerate(life):
            for counter, growth in ((DRAFTS, d), (TOKENS, t)):
                raw[counter] += growth or 0
                true[counter] += growth or 0
            counts += observed
            shown = {c: raw[c] for c, growth in ((DRAFTS, d), (TOKENS, t)) if growth is not None}
            restarted = (poll == 0 and not first_poll) if known else None
            totals = continuation.advance(
                engine(shown, ttft=(0, counts, counts), positions=(counts,)), restarted=restarted
            ).engine
            first_poll = False
            now = {**totals.counters, "h": totals.histograms[Phase.TTFT].count, "p": totals.accepted_per_position[0]}
            assert all(value >= last.get(key, 0) for key, value in now.items())
            last |= now
            if known:
                for counter, value in totals.counters.items():
                    assert value <= true[counter]  # less where a page lacked the counter at a life's end
    if known and all(d is not None and t is not None for life in lives for d, t, _ in life):
        assert last[DRAFTS] == true[DRAFTS]
        assert last[TOKENS] == true[TOKENS]
        assert last["h"] == last["p"] == sum(observed for life in lives for *_, observed in life)


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
    assert kept.span is None
    assert len(kept) == 0
    assert kept.value_at(DRAFTS, 0) is None
    assert kept.positions_growth(0, 1) == ()
    assert not kept.restarted_within(-math.inf, math.inf)


def test_growth():
    kept = timeline((10, 100), (20, 200), (40, 300))
    assert kept.span == Span(10, 40)
    assert kept.growth(DRAFTS, 15, 30) == 100
    assert kept.growth(DRAFTS, 10, 40) == 200
    assert kept.growth(DRAFTS, 20, 20) == 0
    assert kept.growth(TOKENS, 10, 40) is None


def test_there_is_no_value_beside_a_poll_without_it():
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
    assert kept.span == Span(back, back)
    assert kept.value_at(DRAFTS, back) == 4
    assert not kept.restarted_within(0, 100)
    kept.append(back + 1, Totals(engine({DRAFTS: 6}), restarted=False))
    assert kept.growth(DRAFTS, back, back + 1) == 2


def test_number_of_readings_is_bounded_by_count():
    kept = Timeline(history=1e9, max_readings=100)
    for at in range(5000):
        kept.append(float(at), Totals(engine({DRAFTS: at}), restarted=True))
        assert len(kept) <= 100 + 64
    assert kept.value_at(DRAFTS, 4950.5) == 4950.5
    assert len(kept._restarts) <= len(kept) + 1


def test_number_of_readings_is_bounded_by_time():
    kept = Timeline(history=100.0)
    for at in range(5000):
        kept.append(float(at), Totals(engine({DRAFTS: at}), restarted=False))
        assert len(kept) <= 100 + 64
        assert kept.span.start <= max(at - 99, 0)


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
    span = kept.span
    cuts = sorted([span.start, span.end, *(min(span.start + s * (span.end - span.start), span.end) for s in shares)])
    parts = [kept.growth(DRAFTS, a, b) for a, b in pairwise(cuts)]
    assert all(part >= -1e-9 for part in parts)
    assert sum(parts) == pytest.approx(kept.growth(DRAFTS, span.start, span.end))
