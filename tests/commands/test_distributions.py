"""Tails of distributions, beside published tables."""

import pytest

from specdec_tools.commands.distributions import (
    chi_square_quantile,
    chi_square_tail,
    confidence_factor,
    student_tail,
)


@pytest.mark.parametrize(
    ("square", "freedom", "tail"),
    [  # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.4
        (3.841, 1, 0.05),
        (10.828, 1, 0.001),
        (0.103, 2, 0.95),
        (29.588, 10, 0.001),
        (124.342, 100, 0.05),
        (149.449, 100, 0.001),
    ],
)
def test_the_tail_of_a_chi_square_is_that_of_the_tables(square, freedom, tail):
    assert chi_square_tail(square, freedom) == pytest.approx(tail, rel=0.003)
    assert chi_square_quantile(tail, freedom) == pytest.approx(square, rel=0.005)


@pytest.mark.parametrize("freedom", [1, 2, 7.5, 300, 20_000])
def test_its_two_ways_agree_and_its_ends_are_certain(freedom):
    """Below its mean the series is used, above it the fraction."""
    below = chi_square_tail(freedom + 2 - 1e-6, freedom)
    above = chi_square_tail(freedom + 2 + 1e-6, freedom)

    assert below == pytest.approx(above, rel=1e-5)
    assert chi_square_tail(0, freedom) == 1
    assert chi_square_tail(1000 * freedom + 1000, freedom) == pytest.approx(0, abs=1e-200)


@pytest.mark.parametrize(
    ("confidence", "degrees", "factor"),
    [  # Abramowitz and Stegun, table 26.10
        (0.95, 3, 3.182),
        (0.999, 3, 12.924),
        (0.999, 4, 8.610),
        (0.99, 10, 3.169),
        (0.95, 19, 2.093),
        (0.99, 1, 63.657),
    ],
)
def test_the_confidence_factor_is_students(confidence, degrees, factor):
    """Also far out with few degrees, where four rounds and many comparisons are."""
    assert confidence_factor(confidence, degrees) == pytest.approx(factor, abs=6e-4)


@pytest.mark.parametrize("degrees", [1, 3, 7, 200, 9999])
@pytest.mark.parametrize("confidence", [0.1, 0.95, 1 - 1e-7])
def test_its_tail_is_what_the_confidence_leaves(confidence, degrees):
    factor = confidence_factor(confidence, degrees)

    assert student_tail(factor, degrees) == pytest.approx(1 - confidence, rel=1e-6)
    assert student_tail(0, degrees) == 1


def test_with_many_degrees_it_is_the_normal_distributions():
    assert confidence_factor(0.95, 10**6) == pytest.approx(1.95996, abs=1e-5)
