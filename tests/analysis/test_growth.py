"""The plug-in's total against vLLM's, poll by poll."""

import pytest
from sidecar.analysis.split.trust import PolledLife, Standing, Trust

from sidecar.analysis.split.comparison import Compared

WAITS, AGREES, DIFFERS = Standing


def totals(draft_tokens):
    return {
        Compared.DRAFTS: draft_tokens // 3,
        Compared.DRAFT_TOKENS: draft_tokens,
        Compared.ACCEPTED_TOKENS: draft_tokens // 2,
    }


def generated(tokens):
    """Of an engine that drafts nothing."""
    return totals(0) | {Compared.GENERATION_TOKENS: tokens}


def poll(trust, at, reports, total, counted):
    """A good poll: the plug-in's ``total`` after so many ``reports``, and vLLM's counters."""
    life = PolledLife(at=float(at), reports=reports, total=total, counted=counted)
    trust.compare(life, tolerance=0.02)


def compared(polls):
    """After polls, one a second, of (vLLM's counter, the plug-in's total).

    A total that differs from the last one is a new report.
    """
    trust, reports, before = Trust(), 0, None
    for at, (counted, reported) in enumerate(polls):
        reports += reported != before
        before = reported
        poll(trust, at, reports, totals(reported), totals(counted))
    return trust


@pytest.mark.parametrize(
    ("polls", "standing"),
    [
        ([(600, 1200)], WAITS),  # the two need not be of one moment
        ([(1200, 600)], WAITS),
        ([(1200, 1200)], AGREES),
        ([(0, 0)], WAITS),  # nothing is compared
        ([(0, 0), (600, 400)], WAITS),  # it says little: from 0 to 600 all would agree
        (
            [(30 * n + ahead, 30 * n) for n, ahead in enumerate((0, 0, 27, 0, 15, 0, 29, 0), 10)],
            AGREES,
        ),
        ([(3000, 3000), (3030, 3150)], WAITS),  # the API server is behind
        ([(3000, 3000), (3030, 3150), (3150, 3150)], AGREES),
        ([(60 * n, 30 * n) for n in range(1, 12)], WAITS),  # as after a stall
        ([(60 * n, 30 * n) for n in range(1, 40)], DIFFERS),
        ([(30 * n, 60 * n) for n in range(1, 5)], WAITS),
        ([(30 * n, 60 * n) for n in range(1, 40)], DIFFERS),
        ([(303 * n, 300 * n) for n in range(1, 100)], AGREES),  # the tolerance
        ([(1200, 600)] * 20, WAITS),  # a sidecar that started beside an idle engine
        ([(1200, 600)] * 40, DIFFERS),
        # For twenty seconds vLLM alone has counted.
        ([(30 * n, min(30 * n, 600)) for n in range(1, 40)], AGREES),
        ([(30 * n, min(30 * n, 600)) for n in range(1, 60)], DIFFERS),
        ([(30 * n, 30 * n if n == 59 else min(30 * n, 600)) for n in range(1, 60)], AGREES),
    ],
)
def test_a_cut_agrees_if_vllm_may_have_counted_the_same_at_its_moment(polls, standing):
    """A poll and a report are never of one moment; only what lasts longer than that contradicts."""
    trust = compared(polls)
    assert trust.standing is standing
    if standing is AGREES and polls[-1] != (0, 0):
        assert trust.ratio == pytest.approx(1, abs=0.011)


@pytest.mark.parametrize("name", ["drafts", "draft_tokens", "accepted_tokens"])
def test_each_of_the_three_numbers_is_compared_and_the_ratio_says_how_far_it_is_off(name):
    """A plug-in that miscounts only accepted tokens must not be trusted for its drafts."""
    trust = Trust()
    other = totals(300) | {Compared(name): 70}
    for at in range(40):
        poll(trust, at, 1, other, totals(300))
    assert trust.standing is DIFFERS
    assert trust.ratio == 70 / totals(300)[Compared(name)]


@pytest.mark.parametrize(("factor", "ratio"), [(0.9, 0.9), (1.1, 1.1), (0.0, 0.0)])
def test_a_plug_in_that_miscounts_after_a_long_exact_life_is_noticed(factor, ratio):
    """Ten million exact tokens do not hide that the growth since then is wrong."""
    exact = [(10_000_000 + 300 * n, 10_000_000 + 300 * n) for n in range(1000)]
    counted = exact[-1][0]
    wrong = [(counted + 300 * n, counted + round(300 * factor * n) + n % 2) for n in range(1, 400)]
    assert compared([*exact, *wrong[:20]]).standing is not DIFFERS
    trust = compared([*exact, *wrong])
    assert trust.standing is DIFFERS
    assert trust.ratio == pytest.approx(ratio, abs=0.1)


def test_a_mark_of_a_late_report_contradicts_nothing():
    """The second report is read late, after vLLM has counted more than its cut has.

    The growth since then seems too large: it includes what the cut lacked, within the tolerance.
    """
    trust = Trust()
    polls = [(0, 0, 1404), (1, 1370, 1404), (2, 1381, 1705), (2, 1381, 1705), (3, 1705, 1705)]
    for at, (reports, total, counted) in enumerate(polls):
        poll(trust, at, reports, totals(total), totals(counted))

    assert trust.standing is AGREES


@pytest.mark.parametrize("behind", range(6))
def test_bursts_between_polls_and_late_reports_contradict_nothing(behind):
    """Traffic that comes in bursts, and reports that are up to six polls old, are usual."""
    counted = [1000 * (n // 50) + (n % 50 > 40) * 10 * (n % 50 - 40) for n in range(1000)]
    trust = Trust()
    for at, now in enumerate(counted):
        cut = at - at % 7 - behind
        poll(trust, at, cut // 7, totals(counted[max(cut, 0)]), totals(now))
        assert trust.standing is not DIFFERS


def test_a_plug_in_that_falls_silent_is_noticed_however_much_it_has_counted():
    """It is not taken for an engine that is idle, nor an idle engine for it."""
    polls = [(10_000_000 + 30 * n, 10_000_000 + 30 * min(n, 100)) for n in range(500)]
    assert compared(polls[:300]).standing is AGREES
    assert compared(polls).standing is DIFFERS
    assert compared([*polls, (polls[-1][0], polls[-1][0])]).standing is AGREES
    assert compared([*polls[:101], *[polls[101]] * 1000]).standing is AGREES, "idle"
