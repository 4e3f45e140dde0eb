"""The direct push finds what the rules find, when they find it.

The scenes are the same, without Prometheus.
"""

from dataclasses import replace
from functools import partial

import pytest

from scripts.alert_texts import NOT_PUSHED, TEXTS, alert_rules, texts_module
from sidecar.alerting.context import context
from sidecar.alerting.courses import Courses
from sidecar.alerting.texts import RULES
from sidecar.analysis.alerts import tells
from sidecar.analysis.pod_alert import Alert, PodAlert, Severity
from sidecar.findings.catalog import explanations
from sidecar.wording.answer import answer
from sidecar.wording.notes import model_notes
from tests.alerts.pods import DAY, Pod, Sidecar
from tests.alerts.scene import all_scenes
from tests.alerts.vllm_pages import after
from tests.analysis.analysis_tools import Server

PUSHED = {alert.value for alert in Alert}
ALIKE = [
    scene
    for scene in all_scenes()
    if scene.alert in PUSHED and scene.end < DAY and not scene.needs_prometheus
]


def fired(pod, minutes):
    """By minute, the alerts that a pod's push fires: rule, severity, labels and value."""
    courses, by_minute = Courses(), {}
    for minute, sidecar in pod.scrapes():
        report = sidecar.report(minute)
        seconds = 60.0 * minute
        known = courses.update(report.alerts, seconds, seconds, is_over=partial(tells, report))
        if pod.start + minute in minutes:
            by_minute[pod.start + minute] = {
                (
                    course.alert.alert,
                    course.alert.severity,
                    frozenset(course.alert.labels.items()),
                    f"{course.alert.value:.3g}",
                )
                for course in known
                if course.ended is None
            }
    return by_minute


@pytest.mark.slow
@pytest.mark.parametrize("scene", ALIKE, ids=lambda scene: f"{scene.alert}: {scene.name}")
def test_the_push_fires_as_the_rules_do(scene):
    """With the same labels, severity and value, minute by minute."""
    severity = next(rule.severity for rule in alert_rules() if rule.name == scene.alert)
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
                if firing in pod.firings and (scene.alert, firing.severity) not in NOT_PUSHED
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


def test_what_the_push_says_is_what_the_rules_say():
    assert TEXTS.read_text(encoding="utf-8") == texts_module(), "run scripts/docs"
    assert {alert for alert, _ in RULES} == set(Alert)


def rules(report):
    """The alerts that hold, with their severity."""
    return {f"{one.alert}/{one.severity}" for one in report.alerts}


def test_failed_polls_leave_alerts_on_models_in_force_for_a_minute():
    pod = Pod("low", minutes=14).drafting(5, 0.3).failing(lambda number: number > 20)
    pod.environment["SPECDEC_ALERTING__PACE"] = "0"
    held = {minute: rules(sidecar.report(minute)) for minute, sidecar in pod.scrapes()}
    assert held[10] == {"SpecDecodeAcceptanceLow/warning"}
    assert held[11] == {"SpecDecodeAcceptanceLow/warning", "SpecDecodeVLLMDown/critical"}
    assert held[12] == {"SpecDecodeVLLMDown/critical"}


def test_alerts_are_in_force_although_nobody_asked_while_the_poll_was_fresh():
    """The direct push asks less often than the sidecar polls."""
    pod = Pod("low", minutes=12).drafting(5, 0.3).failing(lambda number: number > 20)
    sidecar = Sidecar(pod, 0)
    for number in range(22):
        sidecar.poll(number, number / 2)
    assert rules(sidecar.report(11)) == {"SpecDecodeAcceptanceLow/warning"}


def test_that_vllm_was_never_up_is_known_once_a_poll_has_failed():
    """Before that, nobody has asked it."""
    vllm = Server(alerting={"pace": 0})
    assert vllm.report().alerts == ()
    vllm.fail()
    assert rules(vllm.report(later=1)) == {"SpecDecodeVLLMNeverUp/warning"}


def test_the_context_is_what_the_status_page_says():
    """Who is paged reads the same reason on both."""
    pod = Pod("split", minutes=12).bucket("0", 6, 0.6).bucket("1+", 4, 0.225)
    *_, (minute, sidecar) = pod.scrapes()
    report = sidecar.report(minute)
    shown, (note,) = answer(report), model_notes(report.models[0])
    for alert in report.alerts:
        said = context(report, alert)
        assert said == f"{shown.text} {shown.why}\n{note}"
        assert "22% at T 1+" in said


def test_the_context_of_broken_replies_is_about_replies():
    """The acceptance rate looks better than it is, and means nothing to who is told this."""
    pod = Pod("loops", minutes=52).drafting(8, 0.7).finishing(0.7).looping(after(40, 0, 0.4))
    *_, (minute, sidecar) = pod.scrapes()
    report = sidecar.report(minute)
    (alert,) = report.alerts
    said = context(report, alert)

    assert alert.alert is Alert.OUTPUT_WORSE
    assert "replies at temperature 0 (2% on this pod before) repeat" in said
    assert "accept" not in said


def test_the_context_has_the_first_finding_and_its_remedy():
    *_, (minute, sidecar) = Pod("low", minutes=12).drafting(5, 0.3).timed(0.9).scrapes()
    report = sidecar.report(minute)
    finding, *_ = explanations(report.models[0])
    assert report.alerts
    for alert in report.alerts:
        assert f"\nWhy: {finding.what} {finding.remedy}" in context(report, alert)
    assert "--speculative-config" in finding.remedy


def at_temperatures(pod):
    """By minute, whether the push goes on with the alert on a low rate at a temperature."""
    courses, holds = Courses(pace=0), {}
    for minute, sidecar in pod.scrapes(pod.poll):
        report = sidecar.report(minute)
        now = 60 * minute
        known = courses.update(report.alerts, now, now, is_over=partial(tells, report))
        held = {one.alert.alert for one in known if one.ended is None}
        holds[minute] = Alert.LOW_AT_TEMPERATURE in held
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
INFO, WARNING = Severity.INFO, Severity.WARNING
HOLDS = WARNING


def updated(courses, now, severity=None):
    """(start, end) of each alert after an update at ``now``, when one holds, or nothing."""
    alert = PodAlert(alert=Alert.LOW, severity=severity, model_name="m", value=0.5)
    found = courses.update([alert] if severity else [], now, WALL + now)
    return [(course.started - WALL, course.ended and course.ended - WALL) for course in found]


@pytest.fixture
def short(monkeypatch):
    """Each alert waits for 10 s, and outlasts its condition by 5 s."""
    times = {key: replace(rule, wait=10.0, keep=5.0) for key, rule in RULES.items()}
    monkeypatch.setattr("sidecar.alerting.courses.RULES", times)


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
        (1, [(0, INFO, []), (100, INFO, [(100, None)]), (104, HOLDS, [(100, None)]),
             (105, HOLDS, [(100, 105)]), (114, HOLDS, [(100, 105), (114, None)])]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("short")
def test_an_alert_waits_fires_lasts_and_ends(pace, updates):
    courses = Courses(pace)
    for now, severity, expected in updates:
        assert updated(courses, now, severity) == expected, now


CRITICAL = Severity.CRITICAL


def about(alert, severity=CRITICAL, **more):
    return PodAlert(alert=alert, severity=severity, model_name="m", value=0.3, **more)


def pages(courses, now, *alerts):
    """The alerts that fire after an update at ``now``, by name and severity."""
    found = courses.update(alerts, now, now)
    return {(one.alert.alert, one.alert.severity) for one in found if one.ended is None}


def test_one_cause_has_one_page_which_stays_it():
    """Whatever else becomes known; the first of several that begin at once is it."""
    low, slower = about(Alert.LOW), about(Alert.SLOWER)
    collapsed = about(Alert.COLLAPSED)
    courses = Courses(pace=0)

    assert pages(courses, 0, slower) == {(Alert.SLOWER, CRITICAL)}
    assert pages(courses, 1, collapsed, slower) == {(Alert.SLOWER, CRITICAL)}
    assert pages(courses, 2, collapsed, low) == set()  # it ends, and then another may begin
    assert pages(courses, 3, collapsed, low) == {(Alert.COLLAPSED, CRITICAL)}


def test_a_page_on_a_low_rate_goes_on_while_the_rate_loses():
    """Once the fall is part of its past, or a time is known, the rate is still the same."""
    unmeasured = about(Alert.LOW, WARNING, keeps_page=True)
    measured = about(Alert.LOW, INFO, keeps_page=True)
    gains = about(Alert.LOW, INFO)
    courses = Courses(pace=0)

    assert pages(courses, 0, about(Alert.LOW)) == {(Alert.LOW, CRITICAL)}
    assert pages(courses, 1, unmeasured) == {(Alert.LOW, CRITICAL)}
    both = {(Alert.LOW, CRITICAL), (Alert.LOW, INFO)}
    assert pages(courses, 2, about(Alert.SLOWER), measured) == both
    assert pages(courses, 3, gains) == {(Alert.LOW, INFO)}
    assert pages(courses, 4, unmeasured) == {(Alert.LOW, WARNING)}


def test_while_a_collapse_pages_and_once_it_is_mended_no_warning_says_that_the_rate_is_low():
    """Until it is certain to be above the threshold again; one that stays low is told then."""
    collapsed, low = about(Alert.COLLAPSED), about(Alert.LOW, WARNING, keeps_page=True)
    courses = Courses(pace=0)

    assert pages(courses, 0, collapsed) == {(Alert.COLLAPSED, CRITICAL)}
    assert pages(courses, 1, collapsed, low) == {(Alert.COLLAPSED, CRITICAL)}
    assert pages(courses, 2, low) == set()
    assert pages(courses, 3, low) == {(Alert.LOW, WARNING)}


def test_what_held_while_another_paged_is_told_as_soon_as_it_may_be():
    """As the rules do, which count minutes: it need not hold for its whole time again.

    The page outlasts the collapse by 20 minutes, and warnings wait for 15 more.
    """
    collapsed, low = about(Alert.COLLAPSED), about(Alert.LOW, WARNING, keeps_page=True)
    at_temperature = about(Alert.LOW_AT_TEMPERATURE, WARNING, temperature="1+")
    page, warnings = (Alert.COLLAPSED, CRITICAL), (low, at_temperature)
    courses = Courses()

    def at(minute, *alerts):
        return pages(courses, 60 * minute, *alerts)

    assert at(0, collapsed, low) == set()
    assert at(10, collapsed, *warnings) == {page, (Alert.LOW_AT_TEMPERATURE, WARNING)}
    assert at(11, *warnings) == {page}
    assert at(29, *warnings) == {page}
    assert at(30, *warnings) == set()
    assert at(44, *warnings) == set()
    assert at(45, *warnings) == {(one.alert, WARNING) for one in warnings}


def test_a_page_follows_the_one_before_it_at_once():
    collapsed, low = about(Alert.COLLAPSED), about(Alert.LOW)
    courses = Courses()

    for minute in (0, 10):
        pages(courses, 60 * minute, collapsed)
    for minute in range(11, 31):
        pages(courses, 60 * minute, low)
    assert pages(courses, 60 * 31, low) == {(Alert.LOW, CRITICAL)}


def test_a_collapse_of_one_model_silences_no_other():
    low = replace(about(Alert.LOW, WARNING), model_name="other")
    courses = Courses(pace=0)

    assert pages(courses, 0, about(Alert.COLLAPSED), low) >= {(Alert.LOW, WARNING)}
