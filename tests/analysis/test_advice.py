import pytest

from sidecar.analysis.advice import tokens_advice


def advised(acceptance, position_rates):
    return tokens_advice(acceptance, position_rates, fewer=0.4, more=0.8)


def test_fewer_tokens_are_advised_as_far_as_positions_are_worth_it():
    text = advised(0.33, (0.7, 0.45, 0.3, 0.15, 0.05))
    assert "2 instead of 5" in text
    assert "30%" in text


def test_none_at_all_are_advised_if_not_even_the_first_is_worth_it():
    assert "or none" in advised(0.1, (0.25, 0.05))


def test_more_tokens_are_advised_as_far_as_acceptance_reaches():
    # It falls by 10 % a position: 0.9, 0.81, 0.73, then 0.66, 0.59, 0.53.
    assert "up to 6 instead of 3" in advised(0.81, (0.9, 0.81, 0.729))
    # It falls by a third a position, and is 0.42 at the third already.
    assert advised(0.81, (0.75, 0.56, 0.42)) is None


def test_more_tokens_have_an_end():
    assert "up to 16 instead of 12" in advised(0.99, (0.99,) * 12)


def test_between_the_thresholds_there_is_no_advice():
    assert advised(0.4, (0.5,)) is None
    assert advised(0.8, (0.8,)) is None


@pytest.mark.parametrize(("rate", "word"), [(0.2, "fewer"), (0.9, "more")])
def test_without_positions_the_advice_names_no_number(rate, word):
    assert advised(rate, ()) == f"Acceptance {rate:.2f}: speculate {word} tokens."
