"""Errors cover the true values, also of requests that are slow together."""

from random import Random
from statistics import fmean, median, quantiles

import pytest

from specdec_tools.measuring.metrics import (
    Interval,
    estimate,
    least_size,
    relative_change,
)


@pytest.mark.parametrize(
    ("share", "size"), [(None, 1), (0.5, 4), (0.95, 40), (0.99, 200), (0.1, 20)]
)
def test_a_batch_has_two_values_beyond_the_quantile(share, size):
    """Its own quantile scatters as that of the whole does only then."""
    assert least_size(share) == size


def correlated(random, count, length):
    """Values in runs of ``length``, each with a level of its own."""
    levels = [random.gauss(10, 1) for _ in range(count // length)]
    return [level + random.gauss(0, 0.3) for level in levels for _ in range(length)]


def estimated(values, statistic, cut):
    size = len(values) // cut
    parts = [statistic(values[start * size : (start + 1) * size]) for start in range(cut)]
    return estimate(statistic(values), parts, 0.95)


def p95(values):
    return quantiles(values, n=20, method="inclusive")[-1]


def p99(values):
    return quantiles(values, n=100, method="inclusive")[-1]


def ratio(pairs):
    return sum(above for above, _ in pairs) / sum(below for _, below in pairs)


def pairs(random, count, _):
    """Drafted and accepted tokens."""
    below = [random.randint(10, 60) * 3 for _ in range(count)]
    return [(whole * random.betavariate(6, 4), whole) for whole in below]


@pytest.mark.parametrize(
    ("draw", "statistic", "count", "length", "cut"),
    [
        *((correlated, median, count, length, 20) for count, length in ((100, 1), (400, 20))),
        *(
            (correlated, fmean, 400, 20, 20),
            (correlated, p95, 400, 1, 10),
            (correlated, p99, 1000, 1, 5),
        ),
        *((pairs, ratio, 20, 1, 20), (pairs, ratio, 60, 1, 15)),
    ],
)
def test_errors_cover_the_truth(draw, statistic, count, length, cut):
    random = Random(2)
    truth = statistic(draw(random, 100_000, length))
    covered = 0
    for _ in range(200):
        interval = estimated(draw(random, count, length), statistic, cut)
        covered += abs(interval.value - truth) <= interval.error
    assert covered >= 180


def test_few_batches_have_no_error():
    interval = estimate(2.0, [1.0, 2.0, None, 3.0], 0.95)
    assert (interval, interval.is_clear) == (Interval(2.0), False)
    assert estimate(None, [1.0] * 4, 0.95) is None
    assert estimate(2.0, [2.0] * 4, 0.95) == Interval(2.0, 0.0)


def test_a_change_has_the_errors_of_both_sides():
    both = Interval(pytest.approx(0.2), pytest.approx(0.1562, abs=1e-4))
    assert relative_change(Interval(10, 1), Interval(12, 1)) == both
    assert relative_change(Interval(10), Interval(12, 1)) == Interval(pytest.approx(0.2))
    assert relative_change(Interval(0, 0), Interval(1, 0)) is None
