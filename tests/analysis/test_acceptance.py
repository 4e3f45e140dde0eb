"""Acceptance over a window."""

import math

import pytest

from sidecar.analysis.acceptance import Acceptance, window_acceptance
from sidecar.engine.continuation import Totals
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot
from sidecar.engine.timeline import Timeline

INF = math.inf


def test_acceptance():
    found = Acceptance(100, 300, 150, (80, 50, 20))
    assert found.rate == 0.5
    assert found.length == 2.5
    assert found.position_rates == (0.8, 0.5, 0.2)


def test_acceptance_of_a_page_between_two_updates_stays_a_ratio():
    found = Acceptance(10, 30, 31, (11, 10, 10))
    assert found.rate == 1.0
    assert found.position_rates == (1.0, 1.0, 1.0)


def test_acceptance_without_drafts_has_no_length():
    found = Acceptance(0, 30, 10, (5,))
    assert found.length is None
    assert found.position_rates == ()


def spoken(*readings):
    """A timeline of (time, counters)."""
    kept = Timeline(1000)
    for at, counters in readings:
        kept.append(at, Totals(EngineSnapshot(EngineKey("m", "0"), counters, (), {}, {}, None), restarted=False))
    return kept


def work(drafts, draft_tokens, accepted):
    return {Counter.DRAFTS: drafts, Counter.DRAFT_TOKENS: draft_tokens, Counter.ACCEPTED_TOKENS: accepted}


def test_window_acceptance():
    kept = spoken((0, work(10, 30, 20)), (10, work(20, 60, 35)))
    assert window_acceptance(kept, 0, 10) == Acceptance(10, 30, 15, ())


def test_window_that_drafted_nothing_has_no_acceptance():
    assert window_acceptance(spoken((0, work(10, 30, 20)), (10, work(10, 30, 20))), 0, 10) is None


@pytest.mark.parametrize("missing", list(work(0, 0, 0)))
def test_window_acceptance_needs_all_three_counters(missing):
    later = work(20, 60, 35)
    del later[missing]
    assert window_acceptance(spoken((0, work(10, 30, 20)), (10, later)), 0, 10) is None
