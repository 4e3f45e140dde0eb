"""What is computed from counters, buckets and usages."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.analysis.acceptance import Acceptance, window_acceptance
from sidecar.analysis.histogram import ACCEPTANCE_EDGES, USAGE_EDGES, Histogram
from sidecar.analysis.kv_cache import KvCacheUsage
from sidecar.analysis.latency import Latency, gap_growth, latency
from sidecar.analysis.quantile import histogram_quantile
from sidecar.engine.continuation import Totals
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading
from sidecar.engine.timeline import Timeline

INF = math.inf


@pytest.mark.parametrize(
    ("quantile", "edges", "counts", "expected"),
    [
        (0.5, (1.0, 2.0, INF), (0, 10, 10), 1.5),
        (0.5, (1.0, 2.0, INF), (10, 10, 10), 0.5),  # the first bucket begins at 0
        (0.5, (1.0, 2.0, INF), (5, 10, 10), 1.0),  # exactly at an edge
        (0.25, (1.0, 2.0, INF), (5, 10, 10), 0.5),
        (0.9, (1.0, 2.0, INF), (5, 8, 10), 2.0),  # beyond the highest finite edge
        (1.0, (1.0, 2.0, INF), (5, 10, 10), 2.0),
        (1.0, (1.0, 2.0, INF), (10, 10, 10), 1.0),
        (0.99, (1.0, 2.0, INF), (0, 0, 10), 2.0),
        (0.5, (0.0, 2.0, INF), (10, 10, 10), 0.0),  # a first edge of 0 or less is the answer itself
        (0.5, (-1.0, 2.0, INF), (10, 10, 10), -1.0),
        (0.5, (-1.0, 2.0, INF), (0, 10, 10), 0.5),
        (0.5, (1.0, 2.0, 4.0, INF), (5, 5, 10, 10), 1.0),
        (0.6, (1.0, 2.0, 4.0, INF), (5, 5, 10, 10), 2.4),
        (0.5, (1.0, INF), (0, 0), None),
        (0.5, (INF,), (10,), None),
        (0.0, (1.0, 2.0, INF), (5, 10, 10), 0.0),
        (0.0, (1.0, 2.0, INF), (0, 10, 10), None),  # Prometheus: NaN
        (0.5, (1.0, INF), (0.5, 1), 1.0),
    ],
)
def test_quantile(quantile, edges, counts, expected):
    found = histogram_quantile(quantile, HistogramReading(edges, counts))
    assert found is None if expected is None else found == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20))
def test_quantiles_rise_and_stay_within_the_edges(growths):
    counts, total = [], 0
    for growth in growths:
        total += growth
        counts.append(float(total))
    edges = (*(0.1 * (i + 1) for i in range(len(counts) - 1)), INF)
    reading = HistogramReading(edges, tuple(counts))
    found = [histogram_quantile(q / 100, reading) for q in range(1, 101)]
    if total == 0:
        assert set(found) == {None}
    else:
        assert all(low <= high * (1 + 1e-12) for low, high in pairwise(found))
        assert found[0] >= 0
        assert found[-1] <= edges[-2] * (1 + 1e-12)


def test_latency_has_all_quantiles_and_the_gap():
    found = latency(HistogramReading((1.0, 2.0, 4.0, INF), (50.0, 90.0, 100.0, 100.0)))
    assert found.quantiles == pytest.approx({0.5: 1.0, 0.9: 2.0, 0.95: 3.0, 0.99: 3.8})
    assert found.count == 100
    assert found.gap_seconds == pytest.approx(2.8)
    assert found.gap_ratio == pytest.approx(3.8)


def test_gap_has_no_ratio_to_a_median_of_zero():
    found = latency(HistogramReading((0.0, 1.0, INF), (60.0, 100.0, 100.0)))
    assert found.quantiles[0.5] == 0
    assert found.gap_ratio is None
    assert found.gap_seconds > 0


@pytest.mark.parametrize("reading", [None, HistogramReading((1.0, INF), (0.0, 0.0)), HistogramReading((INF,), (5.0,))])
def test_no_latency_without_observations(reading):
    assert latency(reading) is None


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [({0.5: 1.0, 0.99: 2.0}, 2.0), ({0.5: 1.0}, None), ({0.99: 1.0}, None), ({0.5: 1.0, 0.99: 1.0}, None), ({}, None)],
)
def test_gap_against_the_baseline(baseline, expected):
    assert gap_growth(Latency({0.5: 1.0, 0.99: 3.0}, 10), baseline) == expected


def test_acceptance():
    found = Acceptance(100, 300, 150, (80, 50, 20))
    assert found.rate == 0.5
    assert found.length == 2.5
    assert found.position_rates == (0.8, 0.5, 0.2)


def test_acceptance_of_a_page_between_two_updates_stays_a_ratio():
    found = Acceptance(10, 30, 31, (11, 10, 10))
    assert found.rate == 1.0
    assert found.position_rates == (1.0, 1.0, 1.0)


def test_acceptance_without_drafts_has_no_length():
    found = Acceptance(0, 30, 10, (5,))
    assert found.length is None
    assert found.position_rates == ()


def spoken(*readings):
    """A timeline of (time, counters)."""
    kept = Timeline(1000)
    for at, counters in readings:
        kept.append(at, Totals(EngineSnapshot(EngineKey("m", "0"), counters, (), {}, {}, None), restarted=False))
    return kept


def work(drafts, draft_tokens, accepted):
    return {Counter.DRAFTS: drafts, Counter.DRAFT_TOKENS: draft_tokens, Counter.ACCEPTED_TOKENS: accepted}


def test_window_acceptance():
    kept = spoken((0, work(10, 30, 20)), (10, work(20, 60, 35)))
    assert window_acceptance(kept, 0, 10) == Acceptance(10, 30, 15, ())


def test_window_that_drafted_nothing_has_no_acceptance():
    assert window_acceptance(spoken((0, work(10, 30, 20)), (10, work(10, 30, 20))), 0, 10) is None


@pytest.mark.parametrize("missing", list(work(0, 0, 0)))
def test_window_acceptance_needs_all_three_counters(missing):
    later = work(20, 60, 35)
    del later[missing]
    assert window_acceptance(spoken((0, work(10, 30, 20)), (10, later)), 0, 10) is None


def test_thresholds_are_edges():
    """So that a rule can ask for the share below the default threshold exactly."""
    assert {0.5, 0.65, 0.8} <= set(ACCEPTANCE_EDGES)
    assert 0.9 in USAGE_EDGES


def test_distribution_counts_edges_inclusively():
    found = Histogram((0.0, 0.5, 1.0))
    for value in (0.0, 0.25, 0.5, 0.50001, 1.0, 1.5):
        found.observe(value)
    assert found.cumulative() == [1, 3, 5, 6]
    assert found.sum == pytest.approx(3.75001)


@pytest.mark.parametrize("edges", [ACCEPTANCE_EDGES, USAGE_EDGES])
def test_edges_rise_and_hold_all_ratios(edges):
    assert list(edges) == sorted(set(edges))
    assert edges[-1] == 1.0
    found = Histogram(edges)
    found.observe(1.0)
    assert found.cumulative()[-2:] == [1, 1]


@given(st.lists(st.tuples(st.floats(0.01, 40), st.floats(0, 1)), min_size=1, max_size=60))
def test_peak_is_the_highest_of_the_window(polls):
    usage = KvCacheUsage(60.0, 900.0)
    at, seen = 0.0, []
    for pause, value in polls:
        at += pause
        usage.observe(at, value)
        seen.append((at, value))
        assert usage.peak(at) == max(value for when, value in seen if when > at - 60.0)


def test_peak_passes():
    usage = KvCacheUsage(60.0, 900.0)
    usage.observe(0, 0.9)
    usage.observe(30, 0.2)
    assert usage.peak(59.9) == 0.9
    assert usage.peak(60) == 0.2
    assert usage.peak(90) is None


def test_peak_does_not_outlive_a_clock_that_was_set_back():
    usage = KvCacheUsage(60.0, 900.0)
    usage.observe(10_000, 0.9)
    usage.observe(100, 0.2)
    assert usage.peak(100) == 0.2
    usage.observe(200, 0.1)
    assert usage.peak(200) == 0.1


def test_history_is_the_highest_of_each_stretch():
    usage = KvCacheUsage(60.0, 600.0)
    for at, value in ((0, 0.1), (5, 0.9), (9.9, 0.3), (10, 0.2), (25, 0.4)):
        usage.observe(at, value)
    assert usage.history() == ((0, 0.9), (10, 0.2), (25, 0.4))
    usage.observe(615, 0.5)
    assert usage.history() == ((25, 0.4), (615, 0.5))


def test_history_is_bounded_and_begins_anew_where_the_clock_is_set_back():
    usage = KvCacheUsage(60.0, 600.0)
    for poll in range(5000):
        usage.observe(float(poll), 0.9)
        assert len(usage.history()) <= 62
    usage.observe(100.0, 0.2)
    usage.observe(200.0, 0.3)
    assert usage.history() == ((100.0, 0.2), (200.0, 0.3))


def test_falling_usage_that_nobody_asks_for_is_bounded():
    usage = KvCacheUsage(60.0, 900.0)
    for poll in range(5000):
        usage.observe(float(poll), 1 - poll / 5000)
    assert len(usage._peaks) <= 61
    assert usage.distribution.cumulative()[-1] == 5000
