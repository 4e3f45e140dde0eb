"""Distributions of observations in fixed buckets, and quantiles."""

import math

import pytest

from sidecar.analysis.distributions import (
    ACCEPTANCE_EDGES,
    USAGE_EDGES,
    Histogram,
    histogram_quantile,
    quantile,
)
from sidecar.analysis.windows.recent import Ordered
from sidecar.engine.snapshot import HistogramReading

INF = math.inf


def test_the_default_thresholds_are_bucket_edges():
    """So that a rule can ask for the share below the default threshold exactly."""
    assert {0.5, 0.65, 0.8} <= set(ACCEPTANCE_EDGES)
    assert 0.9 in USAGE_EDGES


def test_a_bucket_includes_its_upper_edge():
    """As Prometheus's `le` does; the last bucket takes the rest."""
    histogram = Histogram((0.0, 0.5, 1.0))
    for value in (0.0, 0.25, 0.5, 0.50001, 1.0, 1.5):
        histogram.observe(value)

    assert histogram.snapshot().counts == (1, 3, 5, 6)
    assert histogram.snapshot().sum == pytest.approx(3.75001)


CASES = [  # Prometheus's histogram_quantile() gives the same
    # share, edges, counts, quantile
    (0.5, (1.0, 2.0, INF), (0, 10, 10), 1.5),
    (0.5, (1.0, 2.0, INF), (10, 10, 10), 0.5),  # the first bucket begins at 0
    (0.5, (1.0, 2.0, INF), (5, 10, 10), 1.0),  # exactly at an edge
    (0.25, (1.0, 2.0, INF), (5, 10, 10), 0.5),
    (0.9, (1.0, 2.0, INF), (5, 8, 10), 2.0),  # beyond the highest finite edge
    (1.0, (1.0, 2.0, INF), (5, 10, 10), 2.0),
    (1.0, (1.0, 2.0, INF), (10, 10, 10), 1.0),
    (0.99, (1.0, 2.0, INF), (0, 0, 10), 2.0),
    (0.5, (1.0, 2.0, 4.0, INF), (5, 5, 10, 10), 1.0),
    (0.6, (1.0, 2.0, 4.0, INF), (5, 5, 10, 10), 2.4),
    (0.95, (1.0, 2.0, 4.0, 8.0, INF), (50, 50, 90, 99, 100), 4 + 4 * 5 / 9),
    (0.999, (1.0, 2.0, 4.0, 8.0, INF), (50, 50, 90, 99, 100), 8.0),
    (0.5, (1.0, INF), (0, 0), None),
    (0.5, (INF,), (10,), None),
    (0.5, (1.0, INF), (0.5, 1), 1.0),
]


@pytest.mark.parametrize(("share", "edges", "counts", "expected"), CASES)
def test_histogram_quantiles_are_interpolated_as_prometheus_does(share, edges, counts, expected):
    """So the sidecar's own quantiles equal those of a dashboard's query."""
    value = histogram_quantile(share, HistogramReading(edges, counts))

    assert value is None if expected is None else value == pytest.approx(expected, rel=1e-12)


def test_quantiles_of_values_lie_on_the_line_between_neighbours():
    """Also where there is one value, or none."""
    assert quantile([], 0.5) is quantile(Ordered(()), 0.5) is None
    assert quantile([0.4], 0.9) == 0.4
    assert quantile([0.0, 1.0], 0.1) == pytest.approx(0.1)
    assert quantile([0.0, 0.2, 0.4, 0.6, 0.8], 0.9) == pytest.approx(0.72)
