import pytest

from sidecar.analysis.advice import tokens_advice


@pytest.mark.parametrize(
    ("acceptance", "position_rates", "advised"),
    [
        (
            0.33,
            (0.7, 0.45, 0.3, 0.15, 0.05),
            "Acceptance 0.33: speculate fewer tokens: 2 instead of 5; the next one is accepted only 30% of the time.",
        ),
        (0.2, (), "Acceptance 0.20: speculate fewer tokens."),
        (0.4, (0.5,), None),
        (0.8, (0.8,), None),
        (0.81, (0.9, 0.8), "Acceptance 0.81: speculate more tokens, as long as latency under load allows."),
    ],
)
def test_fewer_tokens_are_advised_as_far_as_positions_are_worth_it_or_more(acceptance, position_rates, advised):
    assert tokens_advice(acceptance, position_rates, fewer=0.4, more=0.8) == advised
