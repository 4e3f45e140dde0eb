"""Errors cover the true values, and correlated requests count for less than their number."""

from random import Random
from statistics import fmean, median, quantiles

import pytest

from sidecar.commands.load.metrics import Interval, batches, confidence_factor, estimate, relative_change


@pytest.mark.parametrize(
    ("requests", "in_flight", "share", "count"),
    [
        *((400, 1, 0.5, 20), (64, 16, 0.5, 4), (30, 1, 0.5, 7), (63, 16, 0.5, None), (15, 1, 0.5, None)),
        *((20, 1, None, 20), (30, 1, None, 15), (3, 1, None, None)),
        *((800, 1, 0.99, 4), (799, 1, 0.99, None), (400, 50, 0.95, 8)),
    ],
)
def test_batches_are_as_long_as_the_number_in_flight_and_have_a_value_beyond_the_quantile(
    requests, in_flight, share, count
):
    assert batches(requests, in_flight, share) == count


@pytest.mark.parametrize(("confidence", "degrees", "t"), [(0.95, 3, 3.182), (0.95, 19, 2.093), (0.99, 10, 3.169)])
def test_the_confidence_factor_is_students(confidence, degrees, t):
    assert confidence_factor(confidence, degrees) == pytest.approx(t, rel=0.02)


def correlated(random, count, length):
    """Values in runs of ``length``, each with a level of its own."""
    levels = [random.gauss(10, 1) for _ in range(count // length)]
    return [level + random.gauss(0, 0.3) for level in levels for _ in range(length)]


def estimated(values, statistic, in_flight, share=None):
    cut = batches(len(values), in_flight, share)
    size = len(values) // cut
    parts = [statistic(values[start * size : (start + 1) * size]) for start in range(cut)]
    return estimate(statistic(values), parts, 0.95)


def p95(values):
    return quantiles(values, n=20, method="inclusive")[-1]


def p99(values):
    return quantiles(values, n=100, method="inclusive")[-1]


def ratio(pairs):
    return sum(above for above, _ in pairs) / sum(below for _, below in pairs)


@pytest.mark.parametrize(
    ("statistic", "share", "count", "length"),
    [
        *((median, 0.5, 100, 1), (median, 0.5, 400, 20), (fmean, None, 400, 20)),
        *((p95, 0.95, 400, 1), (p99, 0.99, 1000, 1)),
    ],
)
def test_errors_cover_the_truth(statistic, share, count, length):
    random = Random(2)
    truth = statistic(correlated(random, 100_000, length))
    covered = 0
    for _ in range(200):
        interval = estimated(correlated(random, count, length), statistic, length, share)
        covered += abs(interval.value - truth) <= interval.error
    assert covered >= 180


@pytest.mark.parametrize(("count", "in_flight"), [(20, 1), (60, 4)])
def test_errors_of_ratios_cover_the_truth(count, in_flight):
    random = Random(3)
    covered = 0
    for _ in range(200):
        below = [random.randint(10, 60) * 3 for _ in range(count)]
        interval = estimated([(whole * random.betavariate(6, 4), whole) for whole in below], ratio, in_flight)
        covered += abs(interval.value - 0.6) <= interval.error
    assert covered >= 180


def test_few_batches_have_no_error():
    interval = estimate(2.0, [1.0, 2.0, None, 3.0], 0.95)
    assert (interval, interval.high) == (Interval(2.0), None)
    assert estimate(None, [1.0] * 4, 0.95) is None
    assert estimate(2.0, [2.0] * 4, 0.95) == Interval(2.0, 0.0)


def test_a_change_has_the_errors_of_both_sides():
    assert relative_change(Interval(10, 1), Interval(12, 1)) == Interval(
        pytest.approx(0.2), pytest.approx(0.1562, abs=1e-4)
    )
    assert relative_change(Interval(10), Interval(12, 1)) == Interval(pytest.approx(0.2))
    assert relative_change(Interval(0, 0), Interval(1, 0)) is None
