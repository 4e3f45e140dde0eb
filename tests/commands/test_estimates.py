"""Intervals cover the true values, and correlated requests count for less than their number."""

from random import Random

import pytest

from sidecar.commands.estimates import (
    Interval,
    batches,
    confidence_factor,
    design_effect,
    quantile_interval,
    ratio_interval,
    relative_change,
    weighted_quantile,
)


@pytest.mark.parametrize(
    ("requests", "in_flight", "found"), [(400, 1, 20), (64, 16, 4), (30, 1, 15), (63, 16, None), (3, 1, None)]
)
def test_batches_are_at_least_as_long_as_the_number_in_flight(requests, in_flight, found):
    assert batches(requests, in_flight) == found


@pytest.mark.parametrize(("confidence", "degrees", "t"), [(0.95, 3, 3.182), (0.95, 19, 2.093), (0.99, 10, 3.169)])
def test_the_confidence_factor_is_students(confidence, degrees, t):
    assert confidence_factor(confidence, degrees) == pytest.approx(t, rel=0.02)


def correlated(random, count, length):
    """Values in runs of ``length``, each with a level of its own."""
    levels = [random.gauss(10, 1) for _ in range(count // length)]
    return [level + random.gauss(0, 0.3) for level in levels for _ in range(length)]


def test_requests_that_share_their_noise_are_worth_less():
    random = Random(1)
    independent = [random.gauss(10, 1) for _ in range(400)]
    assert design_effect(independent, batches(400, 1)) < 2
    assert design_effect(correlated(random, 400, 20), batches(400, 20)) > 8
    assert design_effect([1.0] * 400, batches(400, 1)) == 1


@pytest.mark.parametrize(("share", "count", "length"), [(0.5, 100, 1), (0.5, 400, 20), (0.95, 400, 1)])
def test_intervals_of_quantiles_cover_the_truth(share, count, length):
    random = Random(2)
    truth = sorted(correlated(random, 100_000, length))[int(100_000 * share)]
    covered = 0
    for _ in range(200):
        found = quantile_interval(correlated(random, count, length), share, batches(count, length), 0.95)
        covered += found.low <= truth <= found.high
    assert covered >= 180


def test_intervals_of_ratios_cover_the_truth():
    random = Random(3)
    covered = 0
    for _ in range(200):
        below = [random.randint(10, 60) * 3 for _ in range(60)]
        above = [whole * random.betavariate(6, 4) for whole in below]
        found = ratio_interval(above, below, batches(60, 4), 0.95)
        covered += found.low <= 0.6 <= found.high
    assert covered >= 180


def test_a_tail_of_few_requests_has_no_bounds():
    values = [float(number) for number in range(60)]
    found = quantile_interval(values, 0.99, batches(60, 1), 0.95)
    assert found.value == pytest.approx(58.41)
    assert (found.low, found.high, found.error) == (None, None, None)
    assert quantile_interval([], 0.5, None, 0.95) is None
    assert ratio_interval([0.0], [0.0], None, 0.95) is None


def test_a_change_has_the_errors_of_both_sides():
    found = relative_change(Interval(10, 9, 11), Interval(12, 11, 13))
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == (pytest.approx(0.2 - 0.1562, abs=1e-3), pytest.approx(0.2 + 0.1562, abs=1e-3))
    assert relative_change(Interval(10), Interval(12, 11, 13)) == Interval(pytest.approx(0.2))
    assert relative_change(Interval(0, 0, 0), Interval(1, 1, 1)) is None


def test_a_weighted_quantile():
    values = [(1.0, 0.5), (2.0, 0.25), (3.0, 0.25)]
    assert [weighted_quantile(values, share) for share in (0.2, 0.6, 0.9)] == [1.0, 2.0, 3.0]
    assert weighted_quantile([], 0.5) is None
