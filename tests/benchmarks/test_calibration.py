"""What verdicts are calibrated with: the traffic is as it says, and so are the bounds."""

from collections import Counter
from itertools import chain
from statistics import fmean, stdev

import pytest

from benchmarks.calibration import verdicts
from benchmarks.calibration.changes import Sidecar
from benchmarks.calibration.endings import Pod
from benchmarks.calibration.groups import Mix, errors_off
from benchmarks.calibration.rates import most_events
from benchmarks.calibration.requests import SCATTER, Traffic
from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.judgement import Verdict

HOURS = 6 * 3600.0


def rates(traffic, seed=0):
    ended = chain.from_iterable(traffic.polls(seed, HOURS))
    return [one.accepted / one.drafted for one in ended if one.drafted >= 200]


def by_window(traffic):
    """The rates of five-minute windows, ten polls each."""
    polls = list(traffic.polls(0, HOURS))
    windows = [list(chain.from_iterable(polls[at : at + 10])) for at in range(0, len(polls), 10)]
    return [sum(o.accepted for o in w) / sum(o.drafted for o in w) for w in windows if w]


@pytest.mark.parametrize(("seen", "most"), [(0, 2.996), (1, 4.744), (10, 16.962)])
def test_the_bound_of_a_number_of_events_is_that_of_tables(seen, most):
    """Of the Poisson distribution, one-sided."""
    assert most_events(seen) == pytest.approx(most, abs=0.01)


@pytest.mark.parametrize("has_sessions", [False, True])
def test_requests_have_their_mean_and_scatter_and_arrive_as_often_as_said(has_sessions):
    """The scatter of long requests is hardly more than that of their own rates."""
    traffic = Traffic(0.6, 150, has_sessions)
    found = rates(traffic)

    assert fmean(found) == pytest.approx(0.6, abs=0.01)
    assert stdev(found) == pytest.approx(SCATTER, rel=0.1)
    assert sum(map(len, traffic.polls(0, HOURS))) == pytest.approx(72 * 150, rel=0.06)


def test_sessions_make_windows_differ_more_than_independent_requests_do():
    """That is what a verdict must not take for a change."""
    alone, together = (stdev(by_window(Traffic(0.6, 150, kind))) for kind in (False, True))

    assert together > 1.4 * alone


def test_a_rate_falls_when_it_is_said_to():
    """And not before."""
    windows = by_window(Traffic(0.65, 600, falls_to=0.42, falls_at=HOURS / 2))

    assert fmean(windows[:36]) == pytest.approx(0.65, abs=0.01)
    assert fmean(windows[36:]) == pytest.approx(0.42, abs=0.01)


def test_a_rate_swings_by_the_day_and_is_lower_at_weekends():
    """It is highest at noon."""
    traffic = Traffic(0.6, 20, swing=0.1, weekend=0.2)
    polls = list(traffic.polls(0, 6 * 86_400.0))

    def rate(day, hour):
        at = (24 * day + hour) * 120
        ended = list(chain.from_iterable(polls[at - 60 : at + 60]))
        return sum(one.accepted for one in ended) / sum(one.drafted for one in ended)

    found = [rate(day, hour) for day, hour in ((1, 12), (1, 0), (5, 12))]
    assert found == [pytest.approx(wanted, abs=0.03) for wanted in (0.7, 0.5, 0.5)]


@pytest.mark.slow
def test_a_groups_error_is_that_of_traffic_in_which_none_accepts_less():
    """Of 15 minutes and an hour, in sessions."""
    for off in errors_off(Mix(150, 0.65, has_sessions=True), 0):
        assert fmean(off) == pytest.approx(0, abs=0.1)
        assert stdev(off) == pytest.approx(1, abs=0.15)


def test_the_quick_sidecar_exports_what_the_whole_judge_says():
    """From when a window is full, poll by poll, also where its verdict changes."""
    quick, whole = Sidecar(), verdicts.Pod()
    traffic = Traffic(0.52, 150, has_sessions=True, wander=0.06)
    sides = set()
    for number, ended in enumerate(traffic.polls(0, 2 * HOURS)):
        scraped, judged = quick.poll(ended), whole.poll(ended)
        if number < 10:
            continue
        sides.add(scraped.is_low)
        assert scraped.rate == pytest.approx(judged.acceptance, abs=1e-12)
        assert (scraped.is_low, scraped.loses) == (
            judged.is_low,
            judged.verdict is Verdict.NET_NEGATIVE,
        )
    assert {True, False} <= sides


def groups(mix, **wanted):
    """The requests of a mix that are in these groups, and their rate, in its last three hours."""
    ended = [
        one
        for kinds in list(mix.polls(0, HOURS))[360:]
        for kind, same in kinds.items()
        if wanted.items() <= dict(kind.groups).items()
        for one in same
    ]
    sums = Sums.of([one.drafted for one in ended], [one.accepted for one in ended])
    return sums.requests, sums.rate


@pytest.mark.slow
def test_only_structured_output_costs_and_long_prompts_are_mostly_structured():
    """So that long prompts accept less, and none of it is theirs."""
    mix = Mix(600, costs=0.1, falls_at=HOURS / 2, is_confounded=True)
    long, long_rate = groups(mix, prompt_tokens="8k-32k")
    both, both_rate = groups(mix, prompt_tokens="8k-32k", output="structured")
    _, free_rate = groups(mix, output="free")

    assert both / long == pytest.approx(0.8, abs=0.03)
    assert (both_rate, free_rate) == (pytest.approx(0.5, abs=0.01), pytest.approx(0.6, abs=0.01))
    assert long_rate < 0.54
    _, before = groups(Mix(600), output="structured")
    assert before == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize("alike", [1, 20])
def test_replies_come_as_often_alike_as_said(alike):
    replies = list(chain.from_iterable(Pod(300, 0.1, alike).polls(0, HOURS)))
    kinds = Counter(replies).values()

    assert len(replies) == pytest.approx(72 * 300, rel=0.06)
    # a few of those that loop have equal prompts by chance
    assert len(replies) / len(kinds) == pytest.approx(alike, rel=0.12)
    assert fmean(one.ending == "loop" for one in replies) == pytest.approx(0.1, rel=0.25)


@pytest.mark.slow
def test_a_job_comes_for_an_hour_of_each_day():
    """It sends as many replies as all others, and they loop as often as said."""
    polls = list(Pod(300, 0.0, job=0.4).polls(0, 2 * 86_400.0))
    loops = [sum(one.ending == "loop" for one in replies) for replies in polls]

    for day in range(2):
        of_day = loops[day * 5760 : (day + 1) * 5760]
        told = [number / 240 for number, count in enumerate(of_day) if count]
        assert (told[0], told[-1]) == (pytest.approx(10, abs=0.3), pytest.approx(11, abs=0.3))
        assert sum(of_day) == pytest.approx(12 * 300 * 0.4, rel=0.1)
