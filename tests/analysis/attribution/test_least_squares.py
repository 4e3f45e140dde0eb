import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.analysis.attribution.least_squares import LeastSquares


def fit(rows, targets, most=math.inf, weights=None):
    squares = LeastSquares(len(rows[0]), most)
    for row, target, weight in zip(rows, targets, weights or [1.0] * len(rows), strict=True):
        squares.add(dict(enumerate(row)), target, weight)
    return squares.solve()


def left_over(rows, targets, values):
    return sum((sum(map(float.__mul__, row, values)) - t) ** 2 for row, t in zip(rows, targets, strict=True))


def test_an_exact_system_is_solved():
    rows = [[1.0, 2.0, 0.0], [0.0, 1.0, 1.0], [3.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    wanted = [0.5, 0.25, 0.75]
    targets = [sum(map(float.__mul__, row, wanted)) for row in rows]
    assert fit(rows, targets).values == pytest.approx(wanted, abs=1e-5)


def test_25_unknowns_are_solved():
    rng = random.Random(5)
    wanted = [rng.random() for _ in range(25)]
    rows = [[rng.random() * (rng.random() < 0.3) for _ in wanted] for _ in range(400)]
    targets = [sum(map(float.__mul__, row, wanted)) for row in rows]
    assert fit(rows, targets).values == pytest.approx(wanted, abs=1e-3)


def test_what_would_be_negative_is_0_and_the_others_make_the_best_of_it():
    # Without the bound: x = (3, -1). With it the second is 0 and the first the mean of what is left.
    solution = fit([[1.0, 1.0], [1.0, 2.0], [1.0, 0.0]], [2.0, 1.0, 3.0])
    assert solution.values == pytest.approx((2.0, 0.0), abs=1e-6)


def test_no_value_is_above_the_most():
    assert fit([[1.0], [1.0]], [3.0, 5.0], most=1.0).values == (1.0,)


def test_weights_count_as_repetitions():
    once = fit([[1.0], [1.0]], [1.0, 4.0], weights=[2.0, 1.0])
    assert once.values[0] == pytest.approx(2.0)


def test_standard_errors_are_those_of_the_textbook():
    # y = x * slope: the variance of the slope is s^2 / sum(x^2), s^2 = left over / (n - 1).
    solution = fit([[1.0], [2.0], [3.0]], [1.1, 1.9, 3.2])
    slope = (1.1 + 2 * 1.9 + 3 * 3.2) / 14
    left = sum((x * slope - y) ** 2 for x, y in ((1, 1.1), (2, 1.9), (3, 3.2)))
    assert solution.values[0] == pytest.approx(slope)
    assert solution.errors[0] == pytest.approx(math.sqrt(left / 2 / 14), rel=1e-4)


def test_what_cannot_be_told_apart_has_no_finite_error():
    rows = [[1.0, 2.0, 1.0], [2.0, 4.0, 0.5], [3.0, 6.0, 0.1], [1.0, 2.0, 3.0], [4.0, 8.0, 2.0]]
    errors = fit(rows, [3.0, 6.0, 9.0, 3.0, 12.0]).errors
    assert errors[0] == errors[1] == math.inf
    assert errors[2] < math.inf


def test_what_was_never_seen_and_what_was_seen_too_little_has_no_finite_error():
    assert fit([[1.0, 0.0]] * 5, [1.0] * 5).errors[1] == math.inf
    assert fit([[1.0, 2.0]], [1.0]).errors == (math.inf, math.inf)


def test_faded_observations_give_way_to_new_ones():
    squares = LeastSquares(1)
    for _ in range(10):
        squares.add({0: 1.0}, 10.0, 1.0)
    squares.fade(0.0)
    squares.add({0: 1.0}, 2.0, 1.0)
    assert squares.solve().values == pytest.approx((2.0,))
    assert squares.count == 1


@given(st.integers(0, 10_000))
def test_nothing_in_range_fits_better(seed):
    rng = random.Random(seed)
    size = rng.randint(1, 6)
    rows = [[rng.uniform(0, 3) for _ in range(size)] for _ in range(size + 4)]
    targets = [rng.uniform(-2, 6) for _ in rows]
    values = fit(rows, targets, most=1.0).values
    assert all(0 <= value <= 1 for value in values)
    best = left_over(rows, targets, values)
    for _ in range(50):
        other = [min(max(value + rng.gauss(0, 0.1), 0.0), 1.0) for value in values]
        assert left_over(rows, targets, other) >= best - 1e-3 * (1 + best)
