"""Which bucket a temperature falls into."""

import pytest

from sidecar.analysis.temperature import TemperatureBuckets


@pytest.mark.parametrize(
    ("hundredths", "label"),
    [
        (0, "0"),
        (1, "0-0.3"),  # vLLM raises what is lower, but not 0, to 0.01
        (30, "0-0.3"),
        (31, "0.3-0.5"),
        (50, "0.3-0.5"),
        (70, "0.5-0.7"),
        (100, "0.7-1"),
        (101, "1+"),
        (1_000_000, "1+"),
        ("other", "other"),
    ],
)
def test_a_temperature_falls_into_the_bucket_whose_upper_edge_includes_it(hundredths, label):
    assert TemperatureBuckets().label(hundredths) == label


def test_labels_are_listed_from_cold_to_hot():
    assert TemperatureBuckets().labels == ("0", "0-0.3", "0.3-0.5", "0.5-0.7", "0.7-1", "1+")


@pytest.mark.parametrize("edges", [(0.0, 0.25, 2.0), (0.25, 2.0)])
def test_greedy_has_a_bucket_whether_or_not_0_is_given_as_an_edge(edges):
    assert TemperatureBuckets(edges).labels == ("0", "0-0.25", "0.25-2", "2+")


def test_one_edge_of_0_tells_greedy_from_the_rest():
    buckets = TemperatureBuckets((0.0,))
    assert [buckets.label(value) for value in (0, 10)] == ["0", "0+"]


def test_an_edge_that_no_float_meets_is_still_its_hundredth():
    assert TemperatureBuckets((0.29, 0.57)).label(29) == "0-0.29"
    assert TemperatureBuckets((0.29, 0.57)).label(58) == "0.57+"
