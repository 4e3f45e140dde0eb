"""The committed rules against scenes, by Prometheus' own test runner."""

import re
import zipfile
from dataclasses import replace

import pytest
from hatchling.builders.wheel import WheelBuilder

from sidecar.alerting.conditions import of_models
from sidecar.alerting.rules import load_rules
from sidecar.analysis.verdict import MARGIN
from sidecar.export.metrics import METRICS
from sidecar.settings.groups import Thresholds
from tests.alerts import alert_mutations
from tests.alerts.pods import DAY, Pod
from tests.alerts.scene import RULES, Scene, concerned, of, promtool, recorded, shipped
from tests.alerts.scenes import SCENES
from tests.alerts.scenes_health import scraped
from tests.alerts.variants import LABELS

ALERTS = list(dict.fromkeys(rule["alert"] for rule in shipped() if "alert" in rule))
NOT_METRICS = {"latency_window"}  # in specdec_threshold beside the thresholds


def passes(directory, scene, rules=None, **scraped):
    """By default under the rules that the scene is about."""
    failed = promtool(directory, scene, concerned(shipped(), scene) if rules is None else rules, **scraped)
    assert failed is None, failed


@pytest.mark.servers
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: f"{scene.alert}: {scene.name}")
def test_scene(scene, tmp_path):
    passes(tmp_path, scene)


def is_simple(scene):
    """Whether a scene is short, and only about single pods in one namespace."""
    firing = [one for _, expected in scene.checks for one in expected]
    in_one = len({pod.own.get("namespace") for pod in scene.pods}) == 1
    return scene.end < DAY and in_one and all("instance" in one.labels for one in firing)


FIRST = list({scene.alert: scene for scene in reversed(SCENES) if is_simple(scene)}.values())


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("seconds", [30, 120])
@pytest.mark.parametrize("scene", FIRST, ids=lambda scene: scene.alert)
def test_scene_at_another_scrape_interval(scene, seconds, tmp_path):
    ends = replace(scene, checks=[scene.checks[0], scene.checks[-1]])
    passes(tmp_path, ends, seconds=seconds)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("scene", FIRST, ids=lambda scene: scene.alert)
def test_scene_with_other_labels(scene, labels, tmp_path):
    if labels == "federated" and scene.alert == "SpecDecodeSidecarAbsent":
        pytest.skip("up is the federating Prometheus' own")
    passes(tmp_path, scene, scraped_as=LABELS[labels])


@pytest.mark.servers
def test_alerts_without_their_recording_rules_say_so(tmp_path):
    """As if only one of the two files were loaded."""
    firing = of("low", fault="not recorded")
    scene = Scene("not recorded", "SpecDecodeRulesFailing", [Pod("low", minutes=30).drafting(5, 0.2)])
    scene.checks = [(9, []), (20, [firing])]
    rules = [rule for rule in concerned(shipped(), scene) if not rule.get("record", "fleet:").startswith("pod")]
    passes(tmp_path, scene, rules)


class Silence(Scene):
    """Expects that no alert fires but ``reads``."""

    def test(self, text, **scraped):
        expected = [
            {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []}
            for minute in (50, 77, 115)
            for alert in ALERTS
            if alert not in self.reads
        ]
        return super().test(text, **scraped) | {"alert_rule_test": expected}


def healthy():
    """Two pods that speculate, one of them restarted and with some failed polls, one that has just begun, one plain."""
    for instance in ("a", "b", "new"):
        pod = Pod(instance, minutes=120, start=75 if instance == "new" else 0)
        pod.bucket("0", 3, 0.85).bucket("1+", 2, 0.66).generating(2).finishing(0.63)
        yield pod.tpot(0.02, 0.04).cache(0.6, 1).plain("up", (120, 1))
        if instance == "b":
            pod.restarting(60).failing(lambda number: number in {20, 21, 90})
    yield Pod("plain", minutes=120).generating(60).tpot(0.03, 0.05)


@pytest.mark.servers
def test_a_healthy_fleet_is_silent(tmp_path):
    passes(tmp_path, Silence("healthy", None, list(healthy())), shipped())


@pytest.mark.servers
def test_engines_that_pay_by_time_get_no_more_than_information_on_their_low_acceptance(tmp_path):
    pod = Pod("engines", minutes=120).drafting(5, 0.45).drafting(5, 0.45, engine="1")
    pod.timed(1.3).timed(1.3, engine="1").plain("up", (120, 1))
    passes(tmp_path, Silence("engines that pay", None, [pod], reads=("SpecDecodeAcceptanceLow",)), shipped())
    *_, (minute, sidecar) = pod.scrapes()
    assert [one.rule for one in of_models(sidecar.report(minute), sidecar.settings)] == ["SpecDecodeAcceptanceLow/info"]


@pytest.mark.parametrize(
    "alert",
    ["AcceptanceLow", "AcceptanceLowAtTemperature", "AcceptanceLowAcrossPods", "SlowerThanPlain",
     "SlowerThanPlainAtTemperature"],
)  # fmt: skip
def test_an_alert_that_outlasts_its_threshold_by_the_margin_says_so(alert):
    description = load_rules()[f"SpecDecode{alert}"].description
    assert f"{MARGIN} above it" in description
    assert "below" not in description


@pytest.mark.servers
def test_without_series_only_the_absence_fires(tmp_path):
    scene = Silence("nothing", None, [scraped("other", 0, (130, 1))], reads=("SpecDecodeSidecarAbsent",))
    passes(tmp_path, scene, shipped())


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_its_scenes(alert):
    """Pending and firing: at least one check of silence before and one of firing."""
    checks = [check for scene in SCENES if scene.alert == alert for check in scene.checks]
    first = min(minute for minute, firing in checks if firing)
    assert any(not firing and minute < first for minute, firing in checks)


def test_every_metric_and_threshold_in_a_rule_is_in_the_contract():
    """A rule on a metric that is not exported never fires, which goes unnoticed."""
    known = {metric.name for metric in METRICS}
    for rule in shipped():
        text = rule["expr"] + str(rule.get("annotations", ""))
        for name in re.findall(r"(?<![\w:/.-])specdec_\w+(?![\w:])", text):
            assert name in known, name
        for name in re.findall(r"specdec_threshold\{name=[\"'](\w+)", text):
            assert name in {*Thresholds.model_fields, *NOT_METRICS}, name


def test_every_recorded_series_that_is_read_is_recorded_and_the_other_way_round():
    rules = shipped()
    made = {rule["record"] for rule in rules if "record" in rule}
    read = set().union(*(recorded(f"{rule['expr']} {rule.get('annotations')}") for rule in rules))
    dashboards = " ".join(path.read_text() for path in (RULES.parent / "dashboards").glob("*.json"))
    assert made == read | (made & recorded(dashboards))


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.limit(1800)  # promtool runs each change; `make mutations` makes all of them
def test_no_rule_can_be_changed_unnoticed():
    """Operators, thresholds, gates, numbers, selectors, aggregations, ``for``: one change in twenty."""
    assert alert_mutations.check(every=20)[1] == []


def test_the_wheel_has_the_alerts_and_the_runbooks(tmp_path):
    (wheel,) = WheelBuilder(str(RULES.parent)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("sidecar/alerts/alerts.yaml") == (RULES / "alerts.yaml").read_bytes()
        packed = {name for name in archive.namelist() if name.startswith("sidecar/alerts/runbooks/")}
    assert packed == {f"sidecar/alerts/runbooks/{path.name}" for path in (RULES / "runbooks").iterdir()}
