"""When alerts of the direct push fire and end."""

import pytest

from sidecar.alerting.conditions import Condition, Rule, Tracker

WALL = 1_700_000_000.0
RULES = {
    key: Rule("Name", {"severity": severity}, 10, 5, "", "")
    for key, severity in (("Name", "warning"), ("Name/info", "info"))
}
HOLDS = "Name"


def courses(tracker, now, rule=None):
    """(start, end) of each alert after an update at ``now``, when ``rule`` holds, or nothing."""
    holds = [Condition(rule, {"model_name": "m"}, 0.5)] if rule else []
    updated = tracker.update(holds, now, WALL + now).values()
    return [(course.started - WALL, course.ended and course.ended - WALL) for course in updated]


@pytest.mark.parametrize(
    ("pace", "updates"),
    [
        # It waits, fires, lasts and ends.
        (1, [(0, HOLDS, []), (9, HOLDS, []), (10, HOLDS, [(10, None)]), (20, HOLDS, [(10, None)]),
             (24, None, [(10, None)]), (25, None, [(10, 25)]), (500, None, [(10, 25)]), (926, None, [])]),
        # A break before it fires begins the wait anew.
        (1, [(0, HOLDS, []), (5, None, []), (6, HOLDS, []), (15, HOLDS, []), (16, HOLDS, [(16, None)])]),
        # A short break while it fires is none.
        (1, [(0, HOLDS, []), (10, HOLDS, [(10, None)]), (12, None, [(10, None)]), (14, HOLDS, [(10, None)]),
             (18, None, [(10, None)]), (19, None, [(10, 19)])]),
        # What ended and holds again is a new alert.
        (0, [(0, HOLDS, [(0, None)]), (1, None, [(0, 1)]), (2, HOLDS, [(2, None)])]),
        # The pace stretches both times.
        (2, [(0, HOLDS, []), (19, HOLDS, []), (20, HOLDS, [(20, None)]), (29, None, [(20, None)]),
             (30, None, [(20, 30)])]),
        # One name with two severities is two alerts, as in Prometheus: what was information must hold for its whole
        # time before it pages.
        (1, [(0, "Name/info", []), (100, "Name/info", [(100, None)]), (104, HOLDS, [(100, None)]),
             (105, HOLDS, [(100, 105)]), (114, HOLDS, [(100, 105), (114, None)])]),
    ],
)  # fmt: skip
def test_an_alert_waits_fires_lasts_and_ends(pace, updates):
    tracker = Tracker(RULES, pace)
    for now, rule, expected in updates:
        assert courses(tracker, now, rule) == expected, now
