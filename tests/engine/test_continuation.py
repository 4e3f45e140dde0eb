"""Counters continued across restarts."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.continuation import Continuation
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.snapshot import HistogramReading
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
        ([(100, False), (120, None)], [100, 120]),  # an unknown one looks like growth
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


def test_a_restart_is_detected_by_any_counter_or_histogram():
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
