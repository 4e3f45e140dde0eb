"""Latency quantiles and the gap."""

import math

import pytest

from sidecar.analysis.engine.engine_state import Latency, gap_growth, latency
from sidecar.engine.snapshot import HistogramReading

INF = math.inf


def test_latency_has_all_quantiles_and_the_gap():
    found = latency(HistogramReading((1.0, 2.0, 4.0, INF), (50.0, 90.0, 100.0, 100.0)))
    assert found.quantiles == pytest.approx({0.5: 1.0, 0.9: 2.0, 0.95: 3.0, 0.99: 3.8})
    assert found.count == 100
    assert found.gap_seconds == pytest.approx(2.8)
    assert found.gap_ratio == pytest.approx(3.8)


def test_within_the_first_bucket_there_is_no_gap():
    found = latency(HistogramReading((0.3, 0.5, INF), (100.0, 100.0, 100.0)))
    assert found.quantiles[0.99] == pytest.approx(0.297)
    assert (found.gap_seconds, found.gap_ratio, gap_growth(found, {0.5: 0.1, 0.99: 0.2})) == (None, None, None)


def test_gap_has_no_ratio_to_a_median_of_zero():
    found = latency(HistogramReading((0.0, 1.0, INF), (60.0, 100.0, 100.0)))
    assert found.quantiles[0.5] == 0
    assert found.gap_ratio is None
    assert found.gap_seconds > 0


@pytest.mark.parametrize("reading", [HistogramReading((1.0, INF), (0.0, 0.0)), HistogramReading((INF,), (5.0,))])
def test_no_latency_without_observations(reading):
    assert latency(reading) is None


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [({0.5: 1.0, 0.99: 2.0}, 2.0), ({0.5: 1.0}, None), ({0.99: 1.0}, None), ({0.5: 1.0, 0.99: 1.0}, None), ({}, None)],
)
def test_gap_against_the_baseline(baseline, expected):
    assert gap_growth(Latency({0.5: 1.0, 0.99: 3.0}, 10), baseline) == expected
