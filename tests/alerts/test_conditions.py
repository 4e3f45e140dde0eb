"""The direct push finds what the rules find, when they find it: the same scenes, without Prometheus."""

import pytest

from sidecar.alerting.conditions import of_models, of_vllm
from sidecar.alerting.rules import load_rules
from sidecar.alerting.tracker import Tracker
from tests.alerts.pods import DAY
from tests.alerts.scenes import SCENES

PUSHED = {
    "SpecDecodeAcceptanceLow",
    "SpecDecodeAcceptanceCollapsed",
    "SpecDecodeAcceptanceLowAtTemperature",
    "SpecDecodeAcceptanceP10Low",
    "SpecDecodeSlowerThanPlain",
    "SpecDecodeSlowerThanPlainAtTemperature",
    "SpecDecodeLatencyGapWide",
    "SpecDecodeKVCachePressure",
    "SpecDecodeVLLMDown",
    "SpecDecodeVLLMNeverUp",
}
NEEDS_PROMETHEUS = {
    "without a reference of its own it is compared with plain pods at the same load",
    "what plain pods say of a low acceptance decides where the sidecar knows no time",
    "full and waited for",  # the average of five minutes
    "failed polls do not start the ten minutes anew, unless there are too many",  # three minutes, here one
}
ALIKE = [one for one in SCENES if one.alert in PUSHED and one.name not in NEEDS_PROMETHEUS and one.end < DAY]


def fired(pod, minutes):
    """By minute, the alerts that a pod's push fires: rule, labels and value."""
    tracker, held, found = Tracker(load_rules()), [], {}
    for minute, sidecar in pod.scrapes():
        report = sidecar.report(minute)
        held = list(of_models(report, sidecar.settings)) if report.scrape.up else held
        courses = tracker.update([*held, *of_vllm(report)], 60.0 * minute, 60.0 * minute)
        if pod.start + minute in minutes:
            found[pod.start + minute] = {
                (course.rule.name, course.rule.labels["severity"], key[1], f"{course.finding.value:.3g}")
                for key, course in courses.items()
                if course.ended is None
            }
    return found


@pytest.mark.parametrize("scene", ALIKE, ids=lambda scene: f"{scene.alert}: {scene.name}")
def test_the_push_fires_as_the_rules_do(scene):
    rules = load_rules()
    known = {"instance", "job", "namespace", "pod"}
    for pod in scene.pods:
        if pod.gap:
            continue  # a new sidecar has forgotten what fired
        found = fired(pod, {minute for minute, _ in scene.checks})
        for minute, firing in scene.checks:
            if minute not in found:
                continue  # the pod is gone by then
            expected = {
                (
                    scene.alert,
                    one.severity or rules[scene.alert].labels["severity"],
                    frozenset((name, value) for name, value in one.labels.items() if value and name not in known),
                    f"{one.value if one.labels['model_name'] else 0:.3g}",
                )
                for one in firing
                if one.labels["instance"] == pod.own["instance"]
            }
            assert {one for one in found[minute] if one[0] == scene.alert} == expected, (pod.own["instance"], minute)


def test_each_of_them_is_compared():
    assert {scene.alert for scene in ALIKE} >= PUSHED - {"SpecDecodeKVCachePressure"}


def test_an_alert_comes_with_the_pods_other_numbers():
    (scene,) = [one for one in SCENES if one.name.startswith("it comes with the pod's other numbers")]
    said = "by temperature: [0] 60.0% [1+] 22.5%; share of draft tokens [0] 60.0% [1+] 40.0%."
    for pod, by_temperature in zip(scene.pods, (said, "", ""), strict=True):
        *_, (minute, sidecar) = pod.scrapes()
        (finding, *_) = of_models(sidecar.report(minute), sidecar.settings)
        assert finding.context.startswith("Acceptance rate ")
        assert " (threshold 50.0%)." in finding.context
        assert by_temperature in finding.context
