"""When alerts of the direct push fire and end."""

from dataclasses import replace

import pytest

from sidecar.alerting.conditions import Match
from sidecar.alerting.rules import Rule
from sidecar.alerting.tracker import Alert, Tracker

WALL = 1_700_000_000.0
RULE = Rule(name="Name", severity="warning", wait=10, keep=5, summary="", description="")


def notices(tracker, now, *labels):
    alerts = [Alert(rule=RULE, match=Match({"model_name": label}, 0.5)) for label in labels]
    notices = tracker.update(alerts, now, WALL + now).values()
    return [
        (one.alert.match.labels["model_name"], one.started - WALL, one.ended and one.ended - WALL) for one in notices
    ]


def test_an_alert_waits_fires_lasts_and_ends():
    tracker = Tracker()
    assert notices(tracker, 0, "m") == []
    assert notices(tracker, 9, "m") == []
    assert notices(tracker, 10, "m") == [("m", 10, None)]
    assert notices(tracker, 20, "m") == [("m", 10, None)]
    assert notices(tracker, 24) == [("m", 10, None)]
    assert notices(tracker, 25) == [("m", 10, 25)]
    assert notices(tracker, 500) == [("m", 10, 25)]
    assert notices(tracker, 926) == []


def test_a_break_before_it_fires_begins_the_wait_anew():
    tracker = Tracker()
    notices(tracker, 0, "m")
    notices(tracker, 5)
    assert notices(tracker, 6, "m") == notices(tracker, 15, "m") == []
    assert notices(tracker, 16, "m") == [("m", 16, None)]


def test_a_short_break_while_it_fires_is_none():
    tracker = Tracker()
    notices(tracker, 0, "m")
    notices(tracker, 10, "m")
    notices(tracker, 12)
    assert notices(tracker, 14, "m") == [("m", 10, None)]
    assert notices(tracker, 18) == [("m", 10, None)]
    assert notices(tracker, 19) == [("m", 10, 19)]


def test_what_ended_and_holds_again_is_a_new_alert():
    tracker = Tracker(pace=0)
    assert notices(tracker, 0, "m") == [("m", 0, None)]
    assert notices(tracker, 1) == [("m", 0, 1)]
    assert notices(tracker, 2, "m") == [("m", 2, None)]


def test_a_clock_that_was_set_back_leaves_no_time_in_the_future():
    tracker = Tracker(pace=0)
    firing, ended = (Alert(rule=RULE, match=Match({"model_name": label}, 0.5)) for label in ("firing", "ended"))

    def known(now, wall, *alerts):
        notices = tracker.update(alerts, now, wall).values()
        return {one.alert.match.labels["model_name"]: (one.started, one.ended) for one in notices}

    known(0, 5000, firing, ended)
    assert known(15, 5015, firing) == {"firing": (5000, None), "ended": (5000, 5015)}
    assert known(30, 1000, firing) == {"firing": (1000, None), "ended": (1000, 1000)}
    assert known(45, 1015, firing) == {"firing": (1000, None), "ended": (1000, 1000)}  # once and for all
    assert known(60, 1030) == {"firing": (1000, 1030), "ended": (1000, 1000)}


def test_findings_past_the_bound_are_counted():
    tracker = Tracker(pace=0, most=2)
    assert [label for label, *_ in notices(tracker, 0, "a", "b", "c")] == ["a", "b"]
    assert tracker.overflowed == 1
    notices(tracker, 1)
    assert [label for label, *_ in notices(tracker, 1000, "c")] == ["c"]


@pytest.mark.parametrize("pace", [0.5, 2])
def test_pace_stretches_both_times(pace):
    tracker = Tracker(pace)
    notices(tracker, 0, "m")
    assert notices(tracker, 10 * pace - 1, "m") == []
    assert notices(tracker, 10 * pace, "m") == [("m", 10 * pace, None)]
    assert notices(tracker, 15 * pace - 1) == [("m", 10 * pace, None)]
    assert notices(tracker, 15 * pace) == [("m", 10 * pace, 15 * pace)]


def test_one_name_with_two_severities_is_two_alerts():
    """As in Prometheus: what was information must hold for its whole time before it pages."""
    match = Match({"model_name": "m"}, 0.3)
    critical, info = (Alert(rule=replace(RULE, severity=severity), match=match) for severity in ("critical", "info"))
    tracker = Tracker()

    def known(now, alert):
        notices = tracker.update([alert], now, WALL + now).values()
        return {one.alert.rule.severity: (one.started - WALL, one.ended and one.ended - WALL) for one in notices}

    known(0, info)
    assert known(100, info) == {"info": (100, None)}
    assert known(104, critical) == {"info": (100, None)}
    assert known(105, critical) == {"info": (100, 105)}
    assert known(113, critical) == {"info": (100, 105)}
    assert known(114, critical) == {"info": (100, 105), "critical": (114, None)}


@pytest.mark.parametrize("severity", ["critical", "info"])
def test_an_alert_on_one_temperature_ends_with_the_one_on_the_whole_and_stays_so(severity):
    whole = replace(RULE, name="SpecDecodeAcceptanceLow", severity=severity, keep=0)
    part = replace(RULE, name="SpecDecodeAcceptanceLowAtTemperature", keep=0)
    low = Alert(rule=whole, match=Match({"model_name": "m"}, 0.4))
    hot = Alert(rule=part, match=Match({"model_name": "m", "temperature": "1+"}, 0.3))
    other = Alert(rule=part, match=Match({"model_name": "n", "temperature": "1+"}, 0.3))
    tracker = Tracker()

    def firing(now, *alerts):
        notices = tracker.update(alerts, now, WALL + now).values()
        return [notice.alert for notice in notices if notice.ended is None]

    assert firing(0, low, hot, other) == []
    assert firing(10, low, hot, other) == [low, hot, other]
    assert firing(20, hot, other) == [other]
    assert firing(900, hot, other) == [other]
    firing(930, hot, other)
    assert firing(960, hot, other) == [hot, other] or firing(960, hot, other) == [other, hot]
