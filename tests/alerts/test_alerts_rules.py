"""The committed rules against scenes, by Prometheus' own test runner."""

import re
import zipfile
from dataclasses import replace

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from sidecar.alerting.rules import load_rules
from sidecar.export.reference import all_metrics
from sidecar.settings.groups import Thresholds
from tests.alerts import alert_mutations
from tests.alerts.alert_scenes import SCENES, concerned, recorded
from tests.alerts.alert_scenes_fleet import healthy
from tests.alerts.alert_series import DAY, Pod, gauge
from tests.alerts.alert_tools import RULES, Firing, Scene, promtool, shipped, without_context
from tests.alerts.alert_variants import LABELS, at_interval, with_labels

ALERTS = [rule["alert"] for rule in shipped() if "alert" in rule]
KINDS = {"_bucket": "histogram", "_count": "histogram", "_sum": "histogram"}


@pytest.mark.servers
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: f"{scene.alert or 'numbers'}: {scene.name}")
def test_scene(scene, tmp_path):
    failed = promtool(tmp_path, [scene], concerned(shipped(), scene))
    assert failed is None, failed


LONG = DAY  # minutes; a scene of that length is played at one interval only
SHORT = [scene for scene in SCENES if scene.checks and max(minute for minute, _ in scene.checks) < LONG]


class Changed:
    """A scene whose promtool test ``change`` changes."""

    checks = ()

    def __init__(self, scene, change):
        self._scene, self._change = scene, change

    def test(self, text=None):
        return self._change(self._scene.test(text))


@pytest.mark.servers
@pytest.mark.parametrize("seconds", [15, 30, 120])
@pytest.mark.parametrize("scene", SHORT, ids=lambda scene: f"{scene.alert}: {scene.name}")
def test_scene_at_another_scrape_interval(scene, seconds, tmp_path):
    rules = [without_context(rule) for rule in concerned(shipped(), scene)]
    checks = [check for check in scene.checks if check[0] not in scene.edges]
    played = Changed(replace(scene, checks=checks), lambda test: at_interval(test, seconds))
    failed = promtool(tmp_path, [played], rules)
    assert failed is None, failed


def of_pods(scene):
    """Whether a scene is only about single pods in one namespace."""
    firing = [one for _, expected in scene.checks for one in expected]
    namespaces = {
        re.search(r'namespace="(\w+)"', one)[1] for pod in scene.pods for one in pod.series if "namespace" in one
    }
    return len(namespaces) == 1 and all("instance" in one.labels for one in firing)


FIRST = list({scene.alert: scene for scene in reversed(SHORT) if of_pods(scene)}.values())  # one an alert


@pytest.mark.servers
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("scene", FIRST, ids=lambda scene: f"{scene.alert}: {scene.name}")
def test_scene_with_other_labels(scene, labels, tmp_path):
    if labels == "federated" and scene.alert in {"SpecDecodeSidecarAbsent", "SpecDecodeProxyDown"}:
        pytest.skip("up is the federating Prometheus' own")
    rules = [without_context(rule) for rule in concerned(shipped(), scene)]
    failed = promtool(tmp_path, [Changed(scene, lambda test: with_labels(test, LABELS[labels]))], rules)
    assert failed is None, failed


@pytest.mark.servers
def test_without_addresses_links_lead_to_the_sidecars_and_none_is_dead(tmp_path):
    """A pod's alert links to the pod itself, one on a dead sidecar to a living one, and no dashboard is made up."""
    low = Pod("low").drafting(5, 0.3).plain("specdec_build_info", gauge((90, 1)), version="1")
    gone = Pod("gone", minutes=1).plain("specdec_up", gauge((20, 1)))
    gone.plain("up", gauge((20, 1), (60, 0)))
    for pod in (low, gone):
        pod.series = {series: values for series, values in pod.series.items() if "links_info" not in series}
    low.add("specdec_links_info", gauge((90, 1)), runbooks="", dashboards="")

    class Links(Scene):
        def test(self, text=None):
            made = super().test(text)
            tests = []
            for alert, labels in (
                ("SpecDecodeAcceptanceLow", {"instance": "low:9911", "model_name": "m", "severity": "critical"}),
                ("SpecDecodeSidecarAbsent", {"instance": "gone:9911", "severity": "warning"}),
            ):
                rule = load_rules()[alert]
                annotations = {
                    "summary": rule.text(rule.summary, labels, 0.3),
                    "description": re.sub(
                        r"\{\{ with .+ end \}\}", "gone:9911", rule.text(rule.description, labels, 0.3)
                    ),
                    "runbook_url": f"http://low:9911/runbooks/{alert}.md",
                    "dashboard_url": "",
                }
                own = {"exp_labels": {"job": "vllm", "namespace": "prod"} | labels, "exp_annotations": annotations}
                tests.append({"eval_time": "40m", "alertname": alert, "exp_alerts": [own]})
            return made | {"alert_rule_test": tests}

    failed = promtool(tmp_path, [Links("links", None, "", [low, gone])])
    assert failed is None, failed


@pytest.mark.servers
def test_alerts_without_their_recording_rules_say_so(tmp_path):
    """As if only one of the two files were loaded."""
    text = (
        "not recorded: low:9911. No thresholds: its series have no specdec_threshold with the same labels. Not "
        "recorded, errors: Prometheus fails to evaluate a rule."
    )
    labels = {"fault": "not recorded", "instance": "low:9911", "model_name": "m"}
    scene = Scene(
        "not recorded",
        "SpecDecodeRulesFailing",
        "The rules for speculative decoding do not work, so its alerts cannot fire",
        [Pod("low").drafting(5, 0.2), Pod("links")],
        [(9, []), (20, [Firing("warning", text, labels)])],
    )
    rules = [rule for rule in concerned(shipped(), scene) if not rule.get("record", "fleet:").startswith("pod")]
    failed = promtool(tmp_path, [scene], rules)
    assert failed is None, failed
    assert promtool(tmp_path, [scene], concerned(shipped(), scene)) is not None


class Silence(Scene):
    """Expects nothing but ``firing`` of any alert at each of ``minutes``."""

    minutes = (100, 152, 160, 290)
    firing = ()

    def test(self, text=None):
        expected = [
            {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []}
            for minute in self.minutes
            for alert in ALERTS
            if alert not in self.firing
        ]
        return super().test(text) | {"alert_rule_test": expected}


@pytest.mark.servers
def test_a_healthy_fleet_is_silent(tmp_path):
    failed = promtool(tmp_path, [Silence("healthy", None, "", healthy())])
    assert failed is None, failed


@pytest.mark.servers
def test_without_series_only_the_absence_fires(tmp_path):
    scene = Silence("nothing", None, "", [Pod("other", minutes=1).plain("up", gauge((300, 1)))])
    scene.firing = ("SpecDecodeSidecarAbsent",)
    failed = promtool(tmp_path, [scene])
    assert failed is None, failed


@pytest.mark.servers
@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_its_scenes(alert):
    """Pending, firing, over: at least one check of silence before and one of firing."""
    checks = [check for scene in SCENES if scene.alert == alert for check in scene.checks]
    assert any(firing for _, firing in checks)
    first = min(minute for minute, firing in checks if firing)
    assert any(not firing and minute < first for minute, firing in checks)


def test_what_happened_once_has_left_the_window_before_an_alert_fires():
    """A rate is above 0 as long as its window holds a single event, which alone must not fire."""
    windows = {}
    for rule in shipped():
        found = re.findall(r"(?:rate|increase)(\d+m)\b|(?:rate|increase)\([^()]*\[(\d+m)\]", rule["expr"])
        if "alert" in rule and "for" in rule and found:
            windows[rule["alert"]] = max(int(one.rstrip("m")) for pair in found for one in pair if one)
            held = re.fullmatch(r"(\d+)([mh])", rule["for"])
            assert int(held[1]) * {"m": 1, "h": 60}[held[2]] > windows[rule["alert"]], rule["alert"]
    assert windows["SpecDecodeProxyRefusing"] == windows["SpecDecodeProxyFailing"] == 5
    assert windows["SpecDecodeSidecarFailing"] == windows["SpecDecodeEventsDropped"] == 5


def test_the_rules_stay_inside_what_prometheus_2_42_takes():
    for name in ("recording.yaml", "alerts.yaml"):
        for group in yaml.safe_load((RULES / name).read_text())["groups"]:
            assert set(group) == {"name", "interval", "rules"}
            for rule in group["rules"]:
                allowed = {"record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
                assert set(rule) <= allowed


def test_every_metric_and_threshold_in_a_rule_is_in_the_contract():
    """A rule on a metric that is not exported never fires, which goes unnoticed."""
    known = {metric.name: metric for metric in all_metrics()}
    for rule in shipped():
        text = rule["expr"] + str(rule.get("annotations", ""))
        for name in re.findall(r"(?<![\w:/.-])specdec_\w+(?![\w:])", text):
            ending = next((suffix for suffix in KINDS if name.endswith(suffix)), "")
            metric = known[name.removesuffix(ending)]
            assert not ending or metric.kind == KINDS[ending], name
        for name in re.findall(r"specdec_threshold\{name=[\"'](\w+)", text):
            assert name in Thresholds.model_fields, name


def test_every_recorded_series_that_is_read_is_recorded_and_the_other_way_round():
    rules = shipped()
    made = {rule["record"] for rule in rules if "record" in rule}
    read = set().union(*(recorded(f"{rule['expr']} {rule.get('annotations')}") for rule in rules))
    dashboards = " ".join(path.read_text() for path in (RULES.parent / "dashboards").glob("*.json"))
    assert made == read | (made & recorded(dashboards))


@pytest.mark.servers
@pytest.mark.limit(1200)  # promtool runs each change; `make mutations` makes all of them
def test_no_rule_can_be_changed_unnoticed():
    """Operators, thresholds, gates, numbers, selectors, aggregations, ``for``: one change in twelve."""
    printed, alive = alert_mutations.check(every=12)
    print(printed)  # noqa: T201 - shown with -s
    assert alive == []


def test_the_wheel_has_the_alerts_and_the_runbooks(tmp_path):
    (wheel,) = WheelBuilder(str(RULES.parent)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("sidecar/alerts/alerts.yaml") == (RULES / "alerts.yaml").read_bytes()
        packed = {name for name in archive.namelist() if name.startswith("sidecar/alerts/runbooks/")}
    assert packed == {f"sidecar/alerts/runbooks/{path.name}" for path in (RULES / "runbooks").iterdir()}
