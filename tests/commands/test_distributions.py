"""Tails of distributions, beside published tables."""

import pytest

from sidecar.commands.distributions import chi_square_quantile, chi_square_tail


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
