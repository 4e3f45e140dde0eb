import math
import random

import pytest

from sidecar.analysis.attribution.least_squares import LeastSquares

WIDE = {"mean": 0.0, "deviation": 1e6, "noise": 1e-9}  # a prior that says next to nothing


def fit(rows, targets, *, weight=1.0):
    found = LeastSquares(len(rows[0]))
    for row, target in zip(rows, targets, strict=True):
        found.add(dict(enumerate(row)), target, weight)
    return found


def noisy(values, count, deviation, seed=1):
    rng = random.Random(seed)
    rows = [[rng.uniform(0, 10) for _ in values] for _ in range(count)]
    exact = [sum(cell * value for cell, value in zip(row, values, strict=True)) for row in rows]
    return rows, [target + rng.gauss(0, deviation) for target in exact]


def test_an_exact_system_is_solved():
    rows, targets = noisy([0.1, 0.7, 0.3], 30, 0.0)
    assert fit(rows, targets).solve(**WIDE).values == pytest.approx([0.1, 0.7, 0.3], abs=1e-6)


def test_25_unknowns_are_solved():
    values = [number / 25 for number in range(25)]
    rows, targets = noisy(values, 200, 0.0)
    assert fit(rows, targets).solve(**WIDE).values == pytest.approx(values, abs=1e-4)


def test_standard_errors_are_those_of_the_textbook():
    rows, targets = noisy([2.0], 400, 3.0)
    solution = fit(rows, targets).solve(**WIDE)
    assert solution.errors[0] == pytest.approx(3.0 / math.sqrt(sum(row[0] ** 2 for row in rows)), rel=0.1)


def test_what_is_never_observed_keeps_the_prior():
    found = LeastSquares(2)
    for _ in range(10):
        found.add({0: 1.0}, 0.9, 1.0)
    solution = found.solve(mean=0.4, deviation=0.2, noise=0.01)
    assert (solution.values[1], solution.errors[1]) == pytest.approx((0.4, 0.2))
    assert solution.values[0] == pytest.approx(0.9, abs=0.02)


def test_what_cannot_be_told_apart_shares_the_sum_and_keeps_its_error():
    found = fit([[1.0, 1.0]] * 100, [1.0] * 100)
    solution = found.solve(mean=0.4, deviation=0.2, noise=0.01)
    assert solution.values == pytest.approx((0.5, 0.5), abs=0.01)
    assert solution.errors[0] == pytest.approx(0.2 / math.sqrt(2), rel=0.05)


def test_weights_count_as_repetitions():
    once = fit([[1.0], [1.0], [1.0]], [1.0, 2.0, 2.0]).solve(**WIDE)
    weighted = LeastSquares(1)
    weighted.add({0: 1.0}, 1.0, 1.0)
    weighted.add({0: 1.0}, 2.0, 2.0)
    assert weighted.solve(**WIDE).values == pytest.approx(once.values)


def test_faded_observations_give_way_to_new_ones():
    found = LeastSquares(1)
    for _ in range(100):
        found.add({0: 1.0}, 1.0, 1.0)
    for _ in range(100):
        found.fade(0.9)
        found.add({0: 1.0}, 2.0, 1.0)
    assert found.solve(**WIDE).values[0] == pytest.approx(2.0, abs=0.01)
    assert found.count == pytest.approx(10, rel=0.01)
