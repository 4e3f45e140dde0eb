"""Acceptance over a window."""

import pytest

from sidecar.analysis.evidence import NO_DRAFTS, Acceptance, sum_windows


def test_acceptance():
    found = Acceptance(drafts=100, draft_tokens=300, accepted_tokens=150, accepted_per_position=(80, 50, 20))
    assert found.rate == 0.5
    assert found.length == 2.5
    assert found.position_rates == (0.8, 0.5, 0.2)


def test_position_rates_are_right_under_a_number_of_draft_tokens_that_varies():
    """Half of the drafts had one token: what was drafted at each position divides what was accepted there."""
    found = Acceptance(drafts=100, accepted_per_position=(80, 30, 20), drafted_per_position=(100, 50, 50, 0))
    assert found.position_rates == (0.8, 0.6, 0.4)


def test_acceptance_of_a_page_between_two_updates_stays_a_ratio():
    found = Acceptance(drafts=10, draft_tokens=30, accepted_tokens=31, accepted_per_position=(11, 10, 10))
    assert found.rate == 1.0
    assert found.position_rates == (1.0, 1.0, 1.0)


def test_without_drafts_there_is_neither_rate_nor_length():
    assert (NO_DRAFTS.rate, NO_DRAFTS.length, NO_DRAFTS.position_rates) == (None, None, ())


def test_several_are_summed_not_averaged():
    one = Acceptance(
        seconds=300, requests=9, drafts=1, draft_tokens=100, accepted_tokens=90, accepted_per_position=(9,)
    )
    other = Acceptance(
        seconds=200, requests=1, drafts=1, draft_tokens=300, accepted_tokens=30, accepted_per_position=(1, 1)
    )
    found = sum_windows([one, other])
    assert found.rate == pytest.approx(0.3)
    assert (found.seconds, found.requests, found.accepted_per_position) == (300, 10, (10, 1))
    assert sum_windows([one, Acceptance()]).requests is None
    assert sum_windows([]).rate is None


def test_positions_that_one_of_several_does_not_tell_are_not_those_of_the_others():
    told = Acceptance(drafts=10, draft_tokens=20, accepted_per_position=(8, 4), drafted_per_position=(10, 10))
    silent = Acceptance(drafts=10, draft_tokens=20, accepted_per_position=(9, 9))
    assert sum_windows([told, silent]).position_rates == (17 / 20, 13 / 20)
    assert sum_windows([told, Acceptance(drafts=10, draft_tokens=20)]).position_rates == ()
    assert sum_windows([told, NO_DRAFTS]).position_rates == (0.8, 0.4)
