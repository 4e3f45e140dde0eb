"""Sums, growth and checks of a tally."""

from dataclasses import replace

import pytest

from sidecar.requests.tally import NOTHING, Outcome, Tally

FIRST = Tally(
    stopped=1, aborted=2, drafts=4, draft_tokens=9, accepted_tokens=5, drafted_at=(4, 3, 2), accepted_at=(3, 2, 0)
)


def test_a_sum_and_its_growth_are_those_of_every_number():
    other = Tally(
        length=3, error=1, drafts=1, draft_tokens=4, accepted_tokens=4, drafted_at=(1,) * 4, accepted_at=(1,) * 4
    )
    both = FIRST + other
    assert both == Tally(
        stopped=1, length=3, aborted=2, error=1, drafts=5, draft_tokens=13, accepted_tokens=9,
        drafted_at=(5, 4, 3, 1), accepted_at=(4, 3, 1, 1),
    )  # fmt: skip
    assert both - other == replace(FIRST, drafted_at=(4, 3, 2, 0), accepted_at=(3, 2, 0, 0))
    assert FIRST + NOTHING == FIRST


def test_requests_and_rate():
    assert FIRST.requests == 3
    assert FIRST.by_outcome == {**dict.fromkeys(Outcome, 0), Outcome.STOPPED: 1, Outcome.ABORTED: 2}
    assert (FIRST.rate, NOTHING.rate) == (5 / 9, None)


@pytest.mark.parametrize("name", [*Outcome, "drafts", "draft_tokens", "accepted_tokens"])
def test_a_tally_has_fallen_if_any_number_has(name):
    more = Tally(**{name: 1})
    assert NOTHING.has_fallen(more)
    assert not more.has_fallen(NOTHING)
    assert not more.has_fallen(more)
