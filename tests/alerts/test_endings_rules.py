"""The cases in which the rules and the sidecar compare replies: see ``scenes_endings.py``."""

from tests.alerts.scenes_endings import NAMED


def test_the_cases_are_of_every_kind():
    """So that the two are compared where they could differ."""
    answers = {case.name: case.is_clearly_more("loop") for case in NAMED}
    not_compared = {case.name for case in NAMED if case.compared("loop") is None}

    assert {name for name, is_more in answers.items() if is_more} == {
        "both",
        "enough-references",
        "five",
        "five-at-two",
        "half-at-another-temperature",
        "odds-at-two",
        "six-points-at-two",
    }
    assert not_compared == {
        "few-requests",
        "few-references",
        "most-at-another-temperature",
        "too-few-at-the-other-temperature",
    }
