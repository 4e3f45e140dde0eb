"""Acceptance over a window."""

from dataclasses import replace

import pytest

from sidecar.analysis.evidence import NO_DRAFTS, Acceptance, sum_windows


@pytest.mark.parametrize(
    ("window", "rate", "length", "position_rates"),
    [
        (
            Acceptance(drafts=100, draft_tokens=300, accepted_tokens=150, accepted_per_position=(80, 50, 20)),
            *(0.5, 2.5, (0.8, 0.5, 0.2)),
        ),
        (  # of a page between two of vLLM's updates
            Acceptance(drafts=10, draft_tokens=30, accepted_tokens=31, accepted_per_position=(11, 10, 10)),
            *(1.0, 4.1, (1.0, 1.0, 1.0)),
        ),
        (NO_DRAFTS, None, None, ()),
    ],
)
def test_rates_and_lengths_are_of_the_whole_window(window, rate, length, position_rates):
    assert (window.rate, window.length, window.position_rates) == (rate, length, position_rates)


def test_position_rates_are_right_under_a_number_of_draft_tokens_that_varies():
    """Half of the drafts had one token: what was drafted at each position divides what was accepted there."""
    window = Acceptance(drafts=100, accepted_per_position=(80, 30, 20), drafted_per_position=(100, 50, 50, 0))
    assert window.position_rates == (0.8, 0.6, 0.4)


def test_several_windows_are_summed_not_averaged():
    good = Acceptance(seconds=300, requests=9, drafts=1, draft_tokens=100, accepted_tokens=90)
    bad = Acceptance(seconds=200, requests=1, drafts=1, draft_tokens=300, accepted_tokens=30)
    both = sum_windows([replace(good, accepted_per_position=(9,)), replace(bad, accepted_per_position=(1, 1))])
    assert both.rate == pytest.approx(0.3)
    assert (both.seconds, both.requests, both.accepted_per_position) == (300, 10, (10, 1))
    assert sum_windows([good, Acceptance()]).requests is None
    assert sum_windows([]).rate is None


def test_positions_that_only_some_of_the_windows_have_are_unknown_for_all():
    known = Acceptance(drafts=10, draft_tokens=20, accepted_per_position=(8, 4), drafted_per_position=(10, 10))
    vllms = Acceptance(drafts=10, draft_tokens=20, accepted_per_position=(9, 9))
    assert sum_windows([known, vllms]).position_rates == (17 / 20, 13 / 20)
    assert sum_windows([known, Acceptance(drafts=10, draft_tokens=20)]).position_rates == ()
    assert sum_windows([known, NO_DRAFTS]).position_rates == (0.8, 0.4)
