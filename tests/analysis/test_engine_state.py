"""What one engine's page tells, and what it does not tell.

It tells latency quantiles with the gap, and the KV cache's peak.
"""

import math
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.engine.kv_cache_usage import KvCacheUsage
from sidecar.analysis.engine.latency import Range, gap_growth, latency
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Counter, Trait
from sidecar.engine.snapshot import HistogramReading
from sidecar.settings.baselines import PlainLatency
from tests.analysis.analysis_tools import Server, snap

INF = math.inf


def test_the_prefix_cache_s_window_is_growth_and_counters_that_vllm_lacks_are_unknown():
    server, counters = Server(), dict.fromkeys(Counter, 1000.0)
    del counters[Counter.PREEMPTIONS]
    server.poll(snap(counters=counters))
    server.poll(
        snap(
            counters=counters
            | {
                Counter.PREFIX_CACHE_QUERIES: 1200.0,
                Counter.PREFIX_CACHE_HITS: 1150.0,
            }
        )
    )
    (engine,) = server.engines().values()

    assert (
        engine.cache.hit_ratio,
        engine.cache.preemptions_ratio,
        engine.cache.request_tokens,
    ) == (0.75, None, None)


@pytest.mark.parametrize(
    ("edges", "counts", "quantiles", "gap"),
    [
        (
            (1.0, 2.0, 4.0),
            (50.0, 90.0, 100.0),
            {0.5: 1.0, 0.9: 2.0, 0.95: 3.0, 0.99: 3.8},
            (2.8, 3.8),
        ),
        # All are within the first bucket.
        ((0.3, 0.5), (100.0, 100.0), {0.99: 0.297}, (None, None)),
        # A median of zero has no ratio.
        ((0.0, 1.0), (60.0, 100.0), {0.5: 0.0, 0.99: 0.975}, (0.975, None)),
    ],
)
def test_latency_has_all_quantiles_and_the_gap(edges, counts, quantiles, gap):
    ttft = latency(HistogramReading((*edges, INF), (*counts, 100.0)))

    assert {share: ttft.quantiles[share] for share in quantiles} == pytest.approx(quantiles)
    assert (ttft.count, ttft.gap_seconds, ttft.gap_ratio) == pytest.approx((100, *gap))


@pytest.mark.parametrize(
    "reading", [HistogramReading((1.0, INF), (0.0, 0.0)), HistogramReading((INF,), (5.0,))]
)
def test_without_observations_there_is_no_latency(reading):
    assert latency(reading) is None


@pytest.mark.parametrize(
    ("baseline", "growth"),
    [
        ({0.5: 1.0, 0.99: 2.0}, 2.0),
        ({0.5: 1.0}, None),
        ({0.99: 1.0}, None),
        ({0.5: 1.0, 0.99: 1.0}, None),
        ({}, None),
    ],
)
def test_the_gap_is_compared_with_the_baseline_s(baseline, growth):
    now = latency(HistogramReading((1.0, 3.0, INF), (50.0, 100.0, 100.0)))
    exact = replace(now, ranges={0.5: Range(1.0, 1.0), 0.99: Range(3.0, 3.0)})
    assert gap_growth(exact, PlainLatency(baseline, is_exact=True)) == growth


@given(st.lists(st.tuples(st.floats(0.01, 40), st.floats(0, 1)), min_size=1, max_size=60))
def test_the_kv_cache_s_peak_is_the_highest_usage_of_the_window(polls):
    cache = KvCacheUsage(60.0)
    at, usages = 0.0, []
    for pause, usage in polls:
        at += pause
        cache.observe(at, usage)
        usages.append((at, usage))

        assert cache.peak(at) == max(usage for when, usage in usages if when > at - 60.0)

    assert cache.peak(at + 61.0) is None
    assert cache.distribution.snapshot().count == len(polls)


def test_a_peak_that_nobody_asks_for_is_bounded():
    cache = KvCacheUsage(60.0)
    for poll in range(5000):
        cache.observe(float(poll), 1 - poll / 5000)

    assert len(pickle.dumps(cache)) < 6000


@pytest.mark.parametrize(
    ("snapshot", "start", "expected"),
    [
        (snap(drafts=1), 1.0, set()),
        (snap(drafts=1), None, {Limitation.SEVERAL_PROCESSES}),
        (snap(counters={}), 1.0, {Limitation.NO_SPECULATION}),
        (snap(counters={}, traits=[Trait.OVERCOUNTED]), 1.0, {Limitation.V0_COUNTERS}),
        (snap(counters={}, traits=[Trait.DIFFUSION]), 1.0, {Limitation.DIFFUSION}),
        (replace(snap(), accepted_per_position=()), 1.0, {Limitation.NO_POSITIONS}),
        (replace(snap(), kv_cache_capacity_tokens=None), 1.0, {Limitation.NO_KV_CACHE_CAPACITY}),
        (snap(drafts=5000, accepted=15_400), 1.0, {Limitation.CONTRADICTORY_COUNTERS}),
        (snap(drafts=5000, accepted=15_200), 1.0, set()),  # not of one moment
        (
            replace(snap(drafts=5000), accepted_per_position=(5200.0, 0.0)),
            1.0,
            {Limitation.CONTRADICTORY_COUNTERS},
        ),
        (replace(snap(drafts=5000), accepted_per_position=(5050.0, 0.0)), 1.0, set()),
    ],
)
def test_a_page_s_limitations_are_named(snapshot, start, expected):
    server = Server()
    server.poll(snapshot, start=start)

    assert server.engines()[EngineKey("m", "0")].limitations == expected | {
        Limitation.NO_REQUEST_TPOT
    }
