"""The direct push finds what the rules find, when they find it.

The scenes are the same, without Prometheus.
"""

import pytest

from sidecar.alerting.conditions import (
    NOT_PUSHED,
    PUSHED,
    Condition,
    Rule,
    Tracker,
    conditions,
    load_rules,
)
from sidecar.alerting.past import Past
from sidecar.findings.catalog import explanations
from sidecar.settings import load_settings
from sidecar.settings.groups import Thresholds
from sidecar.wording.answer import answer
from sidecar.wording.notes import model_notes
from tests.alerts.pods import DAY, Pod
from tests.alerts.scene import all_scenes
from tests.alerts.vllm_pages import after
from tests.analysis.analysis_tools import Server

ALIKE = [
    scene
    for scene in all_scenes()
    if scene.alert in PUSHED and scene.end < DAY and not scene.needs_prometheus
]


def fired(pod, minutes):
    """By minute, the alerts that a pod's push fires: rule, severity, labels and value."""
    tracker, past, by_minute = Tracker(load_rules()), Past(), {}
    thresholds = load_settings(None, pod.environment).thresholds
    for minute, sidecar in pod.scrapes():
        report = sidecar.report(minute)
        past.observe(report)
        found = conditions(report, past, thresholds, paged=tracker.paged())
        courses = tracker.update(found, 60.0 * minute, 60.0 * minute)
        if pod.start + minute in minutes:
            by_minute[pod.start + minute] = {
                (
                    course.rule.name,
                    course.rule.labels["severity"],
                    labels,
                    f"{course.condition.value:.3g}",
                )
                for (_, labels), course in courses.items()
                if course.ended is None
            }
    return by_minute


@pytest.mark.slow
@pytest.mark.parametrize("scene", ALIKE, ids=lambda scene: f"{scene.alert}: {scene.name}")
def test_the_push_fires_as_the_rules_do(scene):
    """With the same labels, severity and value, minute by minute."""
    severity = load_rules()[scene.alert].labels["severity"]
    for pod in scene.pods:
        if pod.gap:
            continue  # a new sidecar has forgotten what fired
        for minute, alerts in fired(pod, scene.at).items():
            expected = {
                (
                    scene.alert,
                    firing.severity or severity,
                    frozenset(
                        (name, value)
                        for name, value in firing.labels.items()
                        if name not in pod.own
                    ),
                    f"{firing.value if 'model_name' in firing.labels else 0:.3g}",
                )
                for firing in scene.firing(minute)
                if firing in pod.firings and f"{scene.alert}/{firing.severity}" not in NOT_PUSHED
            }
            assert {alert for alert in alerts if alert[0] == scene.alert} == expected, (
                pod.own["instance"],
                minute,
            )


def test_each_alert_that_the_push_can_send_is_compared_in_a_scene():
    """Otherwise rule and push could drift apart unseen."""
    missing = PUSHED - {scene.alert for scene in ALIKE}

    assert len(PUSHED) >= 10
    assert missing == set(), "add a scene without needs_prometheus, of less than a day"


def test_each_alert_that_the_push_can_send_is_a_rule():
    assert {rule for rule in PUSHED if rule not in load_rules()} == set()


def at_once(report, past=None):
    """The conditions that hold, without any past, at the default thresholds and without a delay."""
    return list(conditions(report, past or Past(), Thresholds(), pace=0))


def test_failed_polls_leave_conditions_on_models_in_force_for_a_minute():
    pod = Pod("low", minutes=14).drafting(5, 0.3).failing(lambda number: number > 20)
    reports = {minute: sidecar.report(minute) for minute, sidecar in pod.scrapes()}
    rules = {
        minute: {condition.rule for condition in at_once(report)}
        for minute, report in reports.items()
    }
    assert rules[10] == {"SpecDecodeAcceptanceLow/warning"}
    assert rules[11] == {"SpecDecodeAcceptanceLow/warning", "SpecDecodeVLLMDown"}
    assert rules[12] == {"SpecDecodeVLLMDown"}


def test_that_vllm_was_never_up_is_known_once_a_poll_has_failed():
    """Before that, nobody has asked it."""
    vllm, past = Server(), Past()
    past.observe(vllm.report())
    assert at_once(vllm.report(), past) == []
    assert [condition.rule for condition in at_once(vllm.fail(), past)] == ["SpecDecodeVLLMNeverUp"]


def test_the_context_is_what_the_status_page_says():
    """Who is paged reads the same reason on both."""
    pod = Pod("split", minutes=12).bucket("0", 6, 0.6).bucket("1+", 4, 0.225)
    *_, (minute, sidecar) = pod.scrapes()
    report = sidecar.report(minute)
    shown, (note,) = answer(report), model_notes(report.models[0])
    for condition in at_once(report):
        assert condition.context == f"{shown.text} {shown.why}\n{note}"
        assert "22% at T 1+" in condition.context


def test_the_context_of_broken_replies_is_about_replies():
    """The acceptance rate looks better than it is, and means nothing to who is told this."""
    pod = Pod("loops", minutes=52).drafting(8, 0.7).finishing(0.7).looping(after(40, 0, 0.4))
    *_, (minute, sidecar) = pod.scrapes()
    (condition,) = at_once(sidecar.report(minute))

    assert condition.rule == "SpecDecodeOutputWorse"
    assert "replies at temperature 0 (2% on this pod before) repeat" in condition.context
    assert "accept" not in condition.context


def test_the_context_has_the_first_finding_and_its_remedy():
    *_, (minute, sidecar) = Pod("low", minutes=12).drafting(5, 0.3).timed(0.9).scrapes()
    report = sidecar.report(minute)
    finding, *_ = explanations(report.models[0])
    for condition in at_once(report):
        assert f"\nWhy: {finding.what} {finding.remedy}" in condition.context
    assert "--speculative-config" in finding.remedy


def at_temperatures(pod):
    """By minute, whether the push's condition on a low rate at a temperature holds."""
    past, holds = Past(), {}
    for minute, sidecar in pod.scrapes(pod.poll):
        report = sidecar.report(minute)
        past.observe(report)
        rules = {condition.rule for condition in at_once(report, past)}
        holds[minute] = "SpecDecodeAcceptanceLowAtTemperature" in rules
    return holds


def test_a_temperature_stays_as_it_was_until_it_is_judged_again():
    """After a restart its split is there before it has passed the gates."""
    pod = Pod("restarts", minutes=16).bucket("0", 6, 0.8).bucket("1+", 4, 0.38).restarting(8)
    holds = at_temperatures(pod)

    assert holds[7.5]
    assert [minute for minute, held in holds.items() if minute > 7 and not held] == []


def test_a_temperature_that_has_gone_is_remembered_for_six_minutes():
    """As in the rules; the push is no place to keep what is over."""
    pod = Pod("over", minutes=30).bucket("0", 6, 0.8).bucket("1+", after(9, 4, 0), 0.38)
    last_judged = max(
        minute
        for minute, sidecar in pod.scrapes(pod.poll)
        for part in sidecar.report(minute).models[0].temperatures
        if part.temperature == "1+" and part.judgement.judged is not None
    )
    held = [minute for minute, is_held in at_temperatures(pod).items() if is_held]

    assert max(held) == last_judged + 5.5  # the last poll within six minutes


WALL = 1_700_000_000.0
SEVERITIES = {
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
             (24, None, [(10, None)]), (25, None, [(10, 25)]), (500, None, [(10, 25)]),
             (926, None, [])]),
        # A break before it fires begins the wait anew.
        (1, [(0, HOLDS, []), (5, None, []), (6, HOLDS, []), (15, HOLDS, []),
             (16, HOLDS, [(16, None)])]),
        # A short break while it fires is none.
        (1, [(0, HOLDS, []), (10, HOLDS, [(10, None)]), (12, None, [(10, None)]),
             (14, HOLDS, [(10, None)]), (18, None, [(10, None)]), (19, None, [(10, 19)])]),
        # What ended and holds again is a new alert.
        (0, [(0, HOLDS, [(0, None)]), (1, None, [(0, 1)]), (2, HOLDS, [(2, None)])]),
        # The pace stretches both times.
        (2, [(0, HOLDS, []), (19, HOLDS, []), (20, HOLDS, [(20, None)]), (29, None, [(20, None)]),
             (30, None, [(20, 30)])]),
        # One name with two severities is two alerts, as in Prometheus: what was information must
        # hold for its whole time before it pages.
        (1, [(0, "Name/info", []), (100, "Name/info", [(100, None)]), (104, HOLDS, [(100, None)]),
             (105, HOLDS, [(100, 105)]), (114, HOLDS, [(100, 105), (114, None)])]),
    ],
)  # fmt: skip
def test_an_alert_waits_fires_lasts_and_ends(pace, updates):
    tracker = Tracker(SEVERITIES, pace)
    for now, rule, expected in updates:
        assert courses(tracker, now, rule) == expected, now
