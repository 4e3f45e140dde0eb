"""Groups are compared at the same temperatures, with errors as large as repeated traffic shows."""

from random import Random
from statistics import stdev

import pytest

from sidecar.analysis.certainty.sums import Sums, total
from sidecar.analysis.split.strata import differences

COLD, HOT = "0", "1+"


def compared(*cells, requests=60, seed=0, min_requests=5):
    """``cells`` are (temperature, group, rate).

    Each request has one rate of its own and 10 drafts of 3 tokens.
    """
    random, sums = Random(seed), {}
    for _ in range(requests):
        for temperature, group, rate in cells:
            own = min(max(random.gauss(rate, 0.15), 0.0), 1.0)
            accepted = sum(random.random() < own for _ in range(30))
            cell = temperature, group
            sums[cell] = sums.get(cell, Sums()) + Sums.of([30], [accepted])
    return differences(sums, min_requests)


def test_a_group_that_is_only_hotter_accepts_no_less():
    """Simpson's paradox: the adapter's requests are mostly hot, and in total accept far less."""
    mostly_hot = [(HOT, "adapter", 0.3)] * 5 + [(COLD, "adapter", 0.8)]
    mostly_cold = [(COLD, "none", 0.8)] * 5 + [(HOT, "none", 0.3)]
    found = compared(*mostly_hot, *mostly_cold)["adapter"]
    assert found.value == pytest.approx(0, abs=0.03)
    assert not found.is_clearly_lower


def test_a_group_that_accepts_less_at_each_temperature_is_clearly_lower():
    """The one that accepts more is not named."""
    found = compared((COLD, "a", 0.5), (HOT, "a", 0.2), (COLD, "b", 0.8), (HOT, "b", 0.5))
    assert found["a"].value == pytest.approx(-0.3, abs=0.05)
    assert (found["a"].is_clearly_lower, found["b"].is_clearly_lower) == (True, False)


def test_the_error_is_how_far_repeated_traffic_scatters():
    """So twice the error covers what chance does."""
    cells = ((COLD, "a", 0.6), (COLD, "b", 0.6), (HOT, "a", 0.4), (HOT, "b", 0.4))
    runs = [compared(*cells, seed=seed)["a"] for seed in range(200)]
    assert stdev(run.value for run in runs) == pytest.approx(runs[0].error, rel=0.2)
    assert sum(abs(run.value) < 2 * run.error for run in runs) / len(runs) > 0.9


def test_of_many_equal_groups_hardly_any_differs_by_chance():
    """Many groups are compared at every poll."""
    flagged = 0
    for seed in range(40):
        groups = compared(*((COLD, str(number), 0.5) for number in range(20)), seed=seed)
        flagged += sum(difference.is_clearly_lower for difference in groups.values())
    assert flagged <= 4  # of 800 comparisons


@pytest.mark.parametrize(
    "cells",
    [
        [(COLD, "a", 0.6)],  # with nobody
        [(COLD, "a", 0.6), (HOT, "b", 0.6)],  # at no temperature
    ],
)
def test_what_cannot_be_compared_has_no_difference(cells):
    """It is absent, not 0."""
    assert compared(*cells) == {}


def counted(**numbers):
    """``numbers`` are requests by temperature and group: ``cold_a`` and so on."""
    accepted = {
        tuple(name.split("_")): [10 + number % 3 for number in range(n)]
        for name, n in numbers.items()
    }
    return set(
        differences({cell: Sums.of([30] * len(each), each) for cell, each in accepted.items()}, 20)
    )


@pytest.mark.parametrize(
    ("numbers", "groups"),
    [
        ({"cold_a": 20, "cold_b": 20}, {"a", "b"}),
        ({"cold_a": 20, "cold_b": 19}, set()),  # on either side
        ({"cold_a": 10, "cold_b": 10, "hot_a": 10, "hot_b": 10}, {"a", "b"}),
        # At one of the temperatures.
        ({"cold_a": 10, "cold_b": 20, "hot_a": 10, "hot_b": 4}, set()),
        # Most of a has nothing to compare it with.
        ({"cold_a": 20, "cold_b": 20, "hot_a": 21}, {"b"}),
    ],
)
def test_few_requests_have_no_difference(numbers, groups):
    """Each side of a comparison needs enough of them."""
    assert counted(**numbers) == groups


def test_the_sums_of_several_requests_are_those_of_each_together():
    """They are added at once where they are in the same cells."""
    each = [Sums.of([drafted], [accepted]) for drafted, accepted in ((9, 3), (12, 12), (6, 0))]
    assert Sums.of([9, 12, 6], [3, 12, 0]) == total(each) == Sums(3, 27, 15, 261, 153, 171)
    assert total(each) - each[0] == Sums.of([12, 6], [12, 0])
