"""Groups are compared at the same temperatures, with errors as large as repeated traffic shows."""

from random import Random
from statistics import stdev

import pytest

from sidecar.analysis.split.strata import Strata

COLD, HOT = "0", "1+"


def compared(*cells, requests=60, seed=0, min_requests=5):
    """``cells``: (temperature, group, rate); each request has one rate of its own and 10 drafts of 3 tokens."""
    random, strata = Random(seed), Strata(300.0)
    for number in range(requests):
        for temperature, group, rate in cells:
            own = min(max(random.gauss(rate, 0.15), 0.0), 1.0)
            accepted = sum(random.random() < own for _ in range(30))
            strata.add(float(number), temperature, group, drafted=30, accepted=accepted)
    return strata.differences(min_requests)


def test_a_group_that_is_only_hotter_accepts_no_less():
    """Simpson's paradox: the adapter's requests are mostly hot, and over all they accept far less."""
    mostly_hot = [(HOT, "adapter", 0.3)] * 5 + [(COLD, "adapter", 0.8)]
    mostly_cold = [(COLD, "none", 0.8)] * 5 + [(HOT, "none", 0.3)]
    found = compared(*mostly_hot, *mostly_cold)["adapter"]
    assert found.value == pytest.approx(0, abs=0.03)
    assert not found.is_clearly_lower


def test_a_group_that_accepts_less_at_each_temperature_is_clearly_lower():
    found = compared((COLD, "a", 0.5), (HOT, "a", 0.2), (COLD, "b", 0.8), (HOT, "b", 0.5))
    assert found["a"].value == pytest.approx(-0.3, abs=0.05)
    assert (found["a"].is_clearly_lower, found["b"].is_clearly_lower) == (True, False)


def test_the_error_is_how_far_repeated_traffic_scatters():
    cells = ((COLD, "a", 0.6), (COLD, "b", 0.6), (HOT, "a", 0.4), (HOT, "b", 0.4))
    runs = [compared(*cells, seed=seed)["a"] for seed in range(200)]
    assert stdev(run.value for run in runs) == pytest.approx(runs[0].error, rel=0.2)
    assert sum(abs(run.value) < 2 * run.error for run in runs) / len(runs) > 0.9


def test_of_many_equal_groups_hardly_any_differs_by_chance():
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
    assert compared(*cells) == {}


def test_few_requests_have_no_difference():
    assert compared((COLD, "a", 0.2), (COLD, "b", 0.8), requests=19, min_requests=20) == {}


def test_requests_leave_with_the_window_or_when_the_clock_is_set_back():
    strata = Strata(300.0)
    for at in (0.0, 100.0, 290.0):
        strata.add(at, COLD, "a", drafted=30, accepted=20)
    strata.add(290.0, COLD, "a", drafted=0, accepted=0)  # which says nothing
    for now, requests in ((290.0, 3), (320.0, 2), (450.0, 1)):
        strata.drop(now)
        assert strata.cells[COLD, "a"].requests == requests
    strata.drop(280.0)
    assert strata.cells == {}
