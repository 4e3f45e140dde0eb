"""Which bucket a temperature falls into."""

import pytest

from sidecar.analysis.split.tallies import TemperatureBuckets


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


@pytest.mark.parametrize(
    ("edges", "labels"),
    [
        ((0.0, 0.3, 0.5, 0.7, 1.0), ("0", "0-0.3", "0.3-0.5", "0.5-0.7", "0.7-1", "1+")),
        ((0.0, 0.25, 2.0), ("0", "0-0.25", "0.25-2", "2+")),
        ((0.25, 2.0), ("0", "0-0.25", "0.25-2", "2+")),
        ((0.0,), ("0", "0+")),
    ],
)
def test_labels_are_listed_from_cold_to_hot_and_greedy_always_has_one(edges, labels):
    assert TemperatureBuckets(edges).labels == labels


def test_an_edge_that_no_float_meets_is_still_its_hundredth():
    buckets = TemperatureBuckets((0.29, 0.57))
    assert [buckets.label(value) for value in (29, 57, 58)] == ["0-0.29", "0.29-0.57", "0.57+"]
