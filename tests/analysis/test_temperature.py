import math

import pytest

from sidecar.analysis.temperature import TemperatureBuckets


@pytest.mark.parametrize(
    ("temperature", "label"),
    [
        (0, "0"),
        (9e-6, "0"),
        (1e-5, "0-0.3"),
        (0.3, "0-0.3"),
        (0.30001, "0.3-0.5"),
        (0.5, "0.3-0.5"),
        (0.7, "0.5-0.7"),
        (1, "0.7-1"),
        (1.0001, "1+"),
        (1e9, "1+"),
        (None, "default"),
        (-0.1, "unknown"),
        (-0.0, "0"),
        (math.nan, "unknown"),
        (math.inf, "unknown"),
    ],
)
def test_a_temperature_falls_into_the_bucket_whose_upper_edge_includes_it(temperature, label):
    buckets = TemperatureBuckets()
    assert buckets.label(temperature) == label
    assert label in buckets.labels


def test_a_known_default_takes_the_place_of_none():
    assert TemperatureBuckets(default_temperature=0.6).label(None) == "0.5-0.7"
    assert TemperatureBuckets(default_temperature=0.0).label(None) == "0"


def test_labels_are_listed_from_cold_to_hot():
    assert TemperatureBuckets().labels == ("0", "0-0.3", "0.3-0.5", "0.5-0.7", "0.7-1", "1+", "default", "unknown")


@pytest.mark.parametrize("edges", [(0.0, 0.25, 2.0), (0.25, 2.0)])
def test_greedy_has_a_bucket_whether_or_not_0_is_given_as_an_edge(edges):
    assert TemperatureBuckets(edges).labels == ("0", "0-0.25", "0.25-2", "2+", "default", "unknown")


def test_one_edge_of_0_tells_greedy_from_the_rest():
    buckets = TemperatureBuckets((0.0,))
    assert [buckets.label(value) for value in (0, 0.1)] == ["0", "0+"]
