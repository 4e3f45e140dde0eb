"""Quantiles of buckets and of single values."""

import math

import pytest

from sidecar.analysis.distributions import histogram_quantile, quantile
from sidecar.engine.snapshot import HistogramReading

INF = math.inf


CASES = [
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
def test_histogram_quantile(share, edges, counts, expected):
    found = histogram_quantile(share, HistogramReading(edges, counts))
    assert found is None if expected is None else found == pytest.approx(expected, rel=1e-12)


def test_quantiles_lie_on_the_line_between_neighbours():
    assert quantile([], 0.5) is None
    assert quantile([0.4], 0.9) == 0.4
    assert quantile([0.0, 1.0], 0.1) == pytest.approx(0.1)
    assert quantile([0.0, 0.2, 0.4, 0.6, 0.8], 0.9) == pytest.approx(0.72)
