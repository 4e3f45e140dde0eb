"""What a drop of the acceptance rate is: below its own past, by more than it varies."""

import pytest

from sidecar.analysis.drops import DropWatch
from sidecar.analysis.judgement import Judgement, ModelJudgement, Verdict
from tests.export.reports import judgement

MINUTE, HOUR = 60.0, 3600.0
NOTHING = Judgement(is_known=True)


def judged(rate, **temperatures):
    parts = {label: judgement(Verdict.NET_POSITIVE, one) for label, one in temperatures.items()}
    whole = NOTHING if rate is None else judgement(Verdict.NET_POSITIVE, rate)
    return ModelJudgement(whole=whole, temperatures=parts)


def watched(*phases, every=MINUTE):
    """A watch that has seen each of (seconds, judgement), and whether the last one dropped."""
    watch, at = DropWatch(), 1e6
    for seconds, one in phases:
        end = at + seconds
        while at < end:
            at += every
            watch.observe(at, {"m": one})
    return watch.has_dropped("m", phases[-1][1])


@pytest.mark.parametrize(("rate", "expected"), [(0.7, False), (0.66, False), (0.45, True)])
def test_a_rate_has_dropped_once_it_is_far_below_its_own_past(rate, expected):
    assert watched((8 * HOUR, judged(0.7)), (10 * MINUTE, judged(rate))) is expected


def test_a_rate_that_was_always_low_has_not_dropped():
    assert watched((8 * HOUR, judged(0.3))) is False


def test_a_change_of_the_mix_is_no_drop():
    """Each temperature is compared with itself."""
    before, after = judged(0.7, cold=0.8, hot=0.4), judged(0.5, hot=0.4)
    assert watched((8 * HOUR, before), (10 * MINUTE, after)) is False
    fallen = judged(0.5, cold=0.5, hot=0.4)
    assert watched((8 * HOUR, before), (10 * MINUTE, fallen)) is True


def test_polls_faster_than_its_steps_say_the_same():
    phases = (8 * HOUR, judged(0.7)), (10 * MINUTE, judged(0.45))
    assert watched(*phases, every=7.0) is watched(*phases, every=30.0) is True


def test_a_rate_that_is_not_judged_has_not_dropped():
    assert watched((8 * HOUR, judged(0.7)), (10 * MINUTE, judged(None))) is False
