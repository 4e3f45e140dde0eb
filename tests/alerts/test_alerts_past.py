"""What a sidecar remembers of its models, for the text of its alerts and for small pods."""

import pytest

from sidecar.alerting.past import Past
from sidecar.engine.names import Counter
from tests.alerts.alert_state import engine, make_report

HOUR = 60  # minutes
DAY = 24 * HOUR


def report(*counters):
    return make_report(*(engine(counters=one, number=str(index)) for index, one in enumerate(counters)))


def counted(minutes, per_minute=(1, 60, 180, 90), start=(0, 0, 0, 0)):
    return tuple(begun + minutes * rate for begun, rate in zip(start, per_minute, strict=True))


def remembered(last, acceptances=None):
    """A sidecar evaluated every minute; acceptance is 0.5, or that of ``acceptances`` from each minute on."""
    past, accepted, rate = Past(), 0.0, 0.5
    for minute in range(last + 1):
        rate = (acceptances or {}).get(minute, rate)
        past.observe([report((minute, 60 * minute, 180 * minute, accepted))], 60.0 * minute)
        accepted += 180 * rate
    return past


def test_the_hour_is_what_is_known_of_it():
    found = remembered(30).hour("vllm", "m")
    assert (found.requests, found.drafts, found.acceptance) == (30, 1800, 0.5)
    found = remembered(3 * HOUR, {150: 0.8}).hour("vllm", "m")
    assert found.requests == pytest.approx(60, abs=5)
    assert found.acceptance == pytest.approx(0.65, abs=0.02)


def test_the_day_before_is_the_same_hour_or_unknown():
    past = remembered(DAY + 29)
    assert past.day_before("vllm", "m") is None
    assert past.seconds("vllm", "m") == 60 * (DAY + 29)
    past = remembered(DAY + 5 * HOUR, {4 * HOUR + 30: 0.8, 5 * HOUR + 30: 0.4})
    found = past.day_before("vllm", "m")
    assert found.requests == 60
    assert found.acceptance == pytest.approx(0.8, abs=0.03)
    assert past.seconds("vllm", "m") == pytest.approx(24.5 * 3600, abs=300)


def test_engines_add_up_and_models_and_targets_stay_apart():
    past = Past()
    for minute in range(11):
        past.observe([report(counted(minute), counted(minute, (3, 180, 540, 540)))], 60 * minute)
    assert past.hour("vllm", "m").acceptance == pytest.approx((90 + 540) / 720)
    assert past.hour("vllm", "another") is past.hour("another", "m") is None


def test_counters_that_fall_begin_anew_and_an_engine_that_is_gone_is_forgotten():
    past = remembered(30)
    past.observe([report(counted(1))], 31 * 60)
    assert past.hour("vllm", "m") is None
    past.observe([report(counted(3))], 33 * 60)
    assert past.hour("vllm", "m").requests == 2
    past.observe([report()], 34 * 60)
    assert past.seconds("vllm", "m") == 0


def test_a_counter_that_appears_later_has_not_grown_from_0():
    past = Past()
    before = report(counted(1000))
    del before.engines[0].counters[Counter.DRAFTS]
    past.observe([before], 0)
    past.observe([report(counted(1000))], 60)
    assert past.hour("vllm", "m") is None


def test_nothing_drafted_is_unknown():
    past = Past()
    for minute in range(5):
        past.observe([report((minute, 0, 0, 0))], 60 * minute)
    assert past.hour("vllm", "m") is None
