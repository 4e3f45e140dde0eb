"""When alerts of the direct push fire and end."""

import pytest

from sidecar.alerting.conditions import Finding
from sidecar.alerting.rules import Rule
from sidecar.alerting.tracker import Tracker

WALL = 1_700_000_000.0
RULES = {
    key: Rule("Name", {"severity": severity}, 10, 5, "", "")
    for key, severity in (("Name", "warning"), ("Name/info", "info"))
}


def courses(tracker, now, *labels, rule="Name"):
    found = [Finding(rule, {"model_name": label}, 0.5) for label in labels]
    return [
        (one.finding.labels["model_name"], one.started - WALL, one.ended and one.ended - WALL)
        for one in tracker.update(found, now, WALL + now).values()
    ]


def test_an_alert_waits_fires_lasts_and_ends():
    tracker = Tracker(RULES)
    assert courses(tracker, 0, "m") == []
    assert courses(tracker, 9, "m") == []
    assert courses(tracker, 10, "m") == [("m", 10, None)]
    assert courses(tracker, 20, "m") == [("m", 10, None)]
    assert courses(tracker, 24) == [("m", 10, None)]
    assert courses(tracker, 25) == [("m", 10, 25)]
    assert courses(tracker, 500) == [("m", 10, 25)]
    assert courses(tracker, 926) == []


def test_a_break_before_it_fires_begins_the_wait_anew():
    tracker = Tracker(RULES)
    courses(tracker, 0, "m")
    courses(tracker, 5)
    assert courses(tracker, 6, "m") == courses(tracker, 15, "m") == []
    assert courses(tracker, 16, "m") == [("m", 16, None)]


def test_a_short_break_while_it_fires_is_none():
    tracker = Tracker(RULES)
    courses(tracker, 0, "m")
    courses(tracker, 10, "m")
    courses(tracker, 12)
    assert courses(tracker, 14, "m") == [("m", 10, None)]
    assert courses(tracker, 18) == [("m", 10, None)]
    assert courses(tracker, 19) == [("m", 10, 19)]


def test_what_ended_and_holds_again_is_a_new_alert():
    tracker = Tracker(RULES, pace=0)
    assert courses(tracker, 0, "m") == [("m", 0, None)]
    assert courses(tracker, 1) == [("m", 0, 1)]
    assert courses(tracker, 2, "m") == [("m", 2, None)]


def test_a_clock_that_was_set_back_leaves_no_time_in_the_future():
    tracker = Tracker(RULES, pace=0)

    def known(now, wall, *labels):
        found = tracker.update([Finding("Name", {"model_name": label}) for label in labels], now, wall).values()
        return {one.finding.labels["model_name"]: (one.started, one.ended) for one in found}

    known(0, 5000, "firing", "ended")
    assert known(15, 5015, "firing") == {"firing": (5000, None), "ended": (5000, 5015)}
    assert known(30, 1000, "firing") == {"firing": (1000, None), "ended": (1000, 1000)}
    assert known(45, 1015, "firing") == {"firing": (1000, None), "ended": (1000, 1000)}  # once and for all
    assert known(60, 1030) == {"firing": (1000, 1030), "ended": (1000, 1000)}


@pytest.mark.parametrize("pace", [0.5, 2])
def test_pace_stretches_both_times(pace):
    tracker = Tracker(RULES, pace)
    courses(tracker, 0, "m")
    assert courses(tracker, 10 * pace - 1, "m") == []
    assert courses(tracker, 10 * pace, "m") == [("m", 10 * pace, None)]
    assert courses(tracker, 15 * pace - 1) == [("m", 10 * pace, None)]
    assert courses(tracker, 15 * pace) == [("m", 10 * pace, 15 * pace)]


def test_one_name_with_two_severities_is_two_alerts():
    """As in Prometheus: what was information must hold for its whole time before it pages."""
    tracker = Tracker(RULES)
    courses(tracker, 0, "m", rule="Name/info")
    assert courses(tracker, 100, "m", rule="Name/info") == [("m", 100, None)]
    assert courses(tracker, 104, "m") == [("m", 100, None)]
    assert courses(tracker, 105, "m") == [("m", 100, 105)]
    assert courses(tracker, 114, "m") == [("m", 100, 105), ("m", 114, None)]
