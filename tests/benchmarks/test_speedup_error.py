"""What the error of a speedup is simulated with: the traffic is as it says, and the ± covers it."""

from math import inf
from statistics import fmean, pstdev

import pytest

from benchmarks.speedup_error.certainty import paged_after, scaled
from benchmarks.speedup_error.pods import Pod, Told, long_run
from benchmarks.speedup_error.traffic import Engine, Traffic
from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.judgement import Verdict

SHORT = Traffic(name="short", at_once=(8, 8), reply=200)


def test_an_engine_has_its_load_and_requests_their_reply():
    """Except for those in their midst at the start."""
    polls = list(Engine(Traffic(name="t", at_once=(2, 2), reply=400), 0, 10.0).polls(1))
    ended = [request for poll in polls for request in poll.finished]
    assert [poll.steps.running for poll in polls] == pytest.approx([2.0] * len(polls))
    assert [tokens for tokens, _ in ended[2:]] == [400] * (len(ended) - 2)

    tokens = sum(poll.steps.generated for poll in polls)
    assert tokens == pytest.approx(400 * len(ended), rel=0.01)


def test_noise_is_as_large_as_said():
    noisy = Traffic(name="t", at_once=(1, 1), reply=400, noise=0.05, lasts=60)
    steps = [poll.steps.engine_steps for poll in Engine(noisy, 0, 10.0).polls(8)]
    assert pstdev(steps) / fmean(steps) == pytest.approx(0.05, rel=0.15)


def test_one_simulated_day_is_a_day_at_any_speedup():
    """So the same pods tell how often a false loss is said, and how soon a true one."""
    even = Pod(traffic=SHORT, seed=0, hours=1, poll=30)
    loses = Pod(traffic=SHORT, seed=0, hours=1, poll=30, scale=0.9)

    found = [one.speedup for one in scaled(even.seen(30), 0.9) if one.speedup is not None]
    expected = [one.speedup for one in loses.seen(30) if one.speedup is not None]
    for what in ("ratio", "error"):
        known = [getattr(one, what) for one in found]
        assert known == pytest.approx([getattr(one, what) for one in expected])


def test_a_page_counts_minutes_of_the_last_25():
    loses, not_yet = Verdict.NET_NEGATIVE, Verdict.INSUFFICIENT_DATA

    assert paged_after([not_yet] * 5 + [loses] * 11, 11) == 16
    assert paged_after([loses] * 5 + [not_yet] * 14 + [loses] * 6, 11) == 25
    assert paged_after([loses] * 5 + [not_yet] * 15 + [loses] * 6, 11) == inf


@pytest.mark.slow
@pytest.mark.parametrize(
    "traffic", [SHORT, Traffic(name="wanders", at_once=(8, 8), reply=200, noise=0.03, lasts=60)]
)
def test_after_two_hours_the_plus_minus_covers_the_speedup_of_the_long_run(traffic):
    """A few pods here; docs/measurements/speedup-error.md has the rest."""
    truth = long_run(traffic, 0)
    seen = [one for seed in range(4) for one in Pod(traffic=traffic, seed=seed, hours=6).seen()]
    known = [one.speedup for one in seen if one.at > 7200]
    covered = fmean(abs(one.ratio - truth) <= CONFIDENCE * one.error for one in known)

    assert 0.88 <= covered <= 1
    assert fmean(one.error for one in known) < 0.03


@pytest.mark.slow
def test_a_pod_that_loses_a_tenth_is_found_and_one_that_breaks_even_is_not():
    """From the start, without noise."""
    truth = long_run(SHORT, 0)
    loses = Pod(traffic=SHORT, seed=0, hours=2, poll=30, scale=0.9 / truth)
    even = Pod(traffic=SHORT, seed=0, hours=2, poll=30, scale=1 / truth)

    told = loses.told()
    assert told.negative_at < 3600
    assert told.paged_at >= told.negative_at + 600
    assert even.told() == Told()
