"""Observations in buckets."""

import pytest

from sidecar.analysis.distributions import ACCEPTANCE_EDGES, USAGE_EDGES, Histogram


def test_thresholds_are_edges():
    """So that a rule can ask for the share below the default threshold exactly."""
    assert {0.5, 0.65, 0.8} <= set(ACCEPTANCE_EDGES)
    assert 0.9 in USAGE_EDGES


def test_distribution_counts_edges_inclusively():
    found = Histogram((0.0, 0.5, 1.0))
    for value in (0.0, 0.25, 0.5, 0.50001, 1.0, 1.5):
        found.observe(value)
    assert found.snapshot().counts == (1, 3, 5, 6)
    assert found.snapshot().sum == pytest.approx(3.75001)
