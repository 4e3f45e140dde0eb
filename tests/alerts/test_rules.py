"""The committed rules against scenes, by Prometheus' own test runner."""

import re
from dataclasses import replace

import pytest

from scripts.alert_texts import alert_rules
from sidecar.analysis.alerts import NO_ANSWER
from sidecar.errors import NoVllmMetrics
from sidecar.export.metrics import METRICS
from sidecar.settings.groups import Thresholds
from tests.alerts import alert_mutations
from tests.alerts.pods import DAY, Pod
from tests.alerts.scene import (
    RULES,
    Scene,
    all_scenes,
    concerned,
    promtool,
    recorded,
    shipped,
    shipped_groups,
)
from tests.alerts.scenes_health import scraped

ALERTS = list(dict.fromkeys(rule["alert"] for rule in shipped() if "alert" in rule))


def passes(directory, scene, rules=None, **scraped):
    """By default under the rules that the scene is about."""
    failed = promtool(
        directory, scene, concerned(shipped(), scene) if rules is None else rules, **scraped
    )
    assert failed is None, failed


QUICK = 200  # minutes of pods: what promtool does in two seconds


def quickest(scenes):
    """The name of each alert's quickest scene, where it has a quick one."""

    def work(scene):
        return scene.end * len(scene.pods)

    by_work = sorted(scenes, key=work, reverse=True)
    return {scene.alert: scene.name for scene in by_work if work(scene) <= QUICK}


QUICKEST = quickest(all_scenes())
ALL_TAKE_LONG = {  # alerts that only the slow tests have a scene of
    "SpecDecodeAcceptanceLowAcrossPods",
    "SpecDecodeAcceptanceP10Low",
    "SpecDecodeAcceptanceRegressed",
    "SpecDecodeBreakEven",
    "SpecDecodeCoverageLow",
    "SpecDecodeKVCachePressure",
    "SpecDecodeLatencyGapWide",
    "SpecDecodeMixedWorkload",
    "SpecDecodeModelGone",
    "SpecDecodeNetNegative",
    "SpecDecodeNotSpeculating",
    "SpecDecodeStopped",
    "SpecDecodeVLLMNeverUp",
    "SpecDecodeVLLMRestarting",
    "SpecDecodeVLLMUnstable",
}


def by_its_cost(scene):
    marks = (pytest.mark.slow,) if QUICKEST.get(scene.alert) != scene.name else ()
    return pytest.param(scene, marks=marks, id=f"{scene.alert}: {scene.name}")


def test_every_other_alert_has_a_scene_that_always_runs():
    assert {scene.alert for scene in all_scenes()} - QUICKEST.keys() == ALL_TAKE_LONG


@pytest.mark.servers
@pytest.mark.parametrize("scene", [by_its_cost(scene) for scene in all_scenes()])
def test_the_rules_fire_as_the_scene_says(scene, tmp_path):
    """By promtool, minute by minute: pending, firing with its labels, and silent."""
    passes(tmp_path, scene)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_scene(alert):
    """In which it is silent first, and fires later."""
    fires = any(
        scene.firing(minute)
        for scene in all_scenes()
        if scene.alert == alert
        for minute in scene.at
    )
    assert fires, f"add a scene for {alert} in tests/alerts/scenes_*.py"


def is_simple(scene):
    """Whether a scene is short, only about single pods in one namespace, and begins with no past.

    What was recorded before is given as it is, at the usual interval and with the usual labels.
    """
    has_past = any(":" in metric for pod in scene.pods for metric, _ in pod.added)
    in_one = len({pod.own.get("namespace") for pod in scene.pods}) == 1
    return (
        scene.alert
        and scene.end < DAY
        and in_one
        and not has_past
        and all("instance" in firing.labels for firing in scene.firings)
    )


FIRST = list({scene.alert: scene for scene in reversed(all_scenes()) if is_simple(scene)}.values())


def _without_a_namespace(labels):
    return [{name: value for name, value in labels.items() if name != "namespace"}]


def _by_node_pod_and_replica(labels):
    """Every pod's instance is its node's.

    Two Prometheus replicas are read without deduplication.
    """
    pod = {"cluster": "eu", "instance": "node-1:9911", "pod": labels["instance"].partition(":")[0]}
    return [labels | pod | {"replica": replica} for replica in "ab"]


def _federated(labels):
    """Through another Prometheus, without ``honor_labels``."""
    own = {"exported_job": labels["job"], "exported_instance": labels["instance"]}
    return [labels | own | {"job": "federate", "instance": "prometheus:9090"}]


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("scraped", [
    {"seconds": 30},
    {"seconds": 120},
    {"scraped_as": _without_a_namespace},
    {"scraped_as": _by_node_pod_and_replica},
    {"scraped_as": _federated},
])  # fmt: skip
@pytest.mark.parametrize("scene", FIRST, ids=lambda scene: scene.alert)
def test_the_rules_work_at_another_scrape_interval_and_with_other_labels(scene, scraped, tmp_path):
    if _federated in scraped.values() and scene.alert == "SpecDecodeSidecarAbsent":
        pytest.skip("up is the federating Prometheus' own")
    at = (scene.at[0], scene.at[-1]) if "seconds" in scraped else scene.at
    passes(tmp_path, replace(scene, at=at), **scraped)


_RANGE = re.compile(r"\[((?:\d+[dhms])+)(:\w+)?\]")
_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def _without_its_left_end(match):
    return f"[{1000 * seconds_of(match[1]) - 1}ms{match[2] or ''}]"


def seconds_of(duration):
    parts = re.findall(r"(\d+)([dhms])", duration)
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)


def in_prometheus_3(rules):
    """Prometheus 3 leaves the left end of a range out, which is a millisecond less."""
    return [rule | {"expr": _RANGE.sub(_without_its_left_end, rule["expr"])} for rule in rules]


AFTER_A_RESTART = [scene for scene in all_scenes() if "restart" in scene.name and scene.end < DAY]


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize(
    "scene", [*FIRST, *AFTER_A_RESTART], ids=lambda scene: f"{scene.alert}: {scene.name}"
)
def test_the_rules_hold_where_a_range_has_no_left_end(scene, tmp_path):
    """Debian's promtool includes it, and scenes scrape and evaluate at the same moments."""
    passes(tmp_path, scene, in_prometheus_3(concerned(shipped(), scene)))


@pytest.mark.slow
@pytest.mark.servers
def test_a_page_that_cannot_be_read_is_no_outage_at_any_scrape_interval(tmp_path):
    """The rules are evaluated between two scrapes too, when the newest is two minutes old."""
    pod = Pod("unreadable", minutes=70).drafting(5, 0.8)
    pod.failing(lambda n: n >= 40, NoVllmMetrics("none")).plain("up", (70, 1))
    scene = Scene("unreadable", "SpecDecodeVLLMDown", at=(19, 30, 50, 69)).with_pods(pod)
    for rules in (concerned(shipped(), scene), in_prometheus_3(concerned(shipped(), scene))):
        passes(tmp_path, scene, rules, seconds=120, every="30s")


@pytest.mark.servers
@pytest.mark.parametrize("every", ["30s", "1m", "2m"])
def test_a_rates_past_is_the_same_however_often_it_is_evaluated(every, tmp_path):
    """Prometheus has known for two days that it varies more, around a lower rate."""
    pod, before = Pod("rises", start=4).drafting(5, 0.8), Pod("rises", minutes=0)
    manner = {"model_name": "m", "draft_tokens": "3"}
    past = {"minutes2d": (2878, 2880), "mean8h": (0.79, 0.791), "variance2d": (0.04, 0.039)}
    records = {}
    for name, (was, now) in past.items():
        record = f"pod_temperature:specdec_acceptance:{name}"
        before.plain(record, (1, was), **manner)
        records[record] = [(pod.own | manner, now)]
    scene = Scene("past", None, at=(48,), records=records).with_pods(pod, before)
    passes(tmp_path, scene, every=every)


@pytest.mark.servers
def test_alerts_without_their_recording_rules_say_so(tmp_path):
    """As if only one of the two files were loaded."""
    low = Pod("low", minutes=30).drafting(5, 0.2).fires(fault="not recorded")
    scene = Scene("not recorded", "SpecDecodeRulesFailing", at=(9, 20)).with_pods(low)
    rules = [
        rule
        for rule in concerned(shipped(), scene)
        if not rule.get("record", "fleet:").startswith("pod")
    ]
    passes(tmp_path, scene, rules)


def test_a_group_has_at_most_as_many_rules_as_mimir_accepts():
    """Mimir and Grafana Cloud refuse a group of more than 20 by default."""
    sizes = {group["name"]: len(group["rules"]) for group in shipped_groups()}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > 20} == {}


def intervals():
    """How often the group of each rule is evaluated, in seconds."""
    return [
        (rule, seconds_of(group["interval"]))
        for group in shipped_groups()
        for rule in group["rules"]
    ]


def test_each_for_ends_with_an_evaluation_of_its_group():
    """Else the alert fires up to an interval later than the rule says."""
    held = [(rule, seconds_of(rule["for"]), every) for rule, every in intervals() if "for" in rule]
    assert held
    assert [rule["alert"] for rule, seconds, every in held if seconds % every] == []


def test_an_alert_without_a_for_is_evaluated_every_minute_at_least():
    """So is the dead man's switch, which Alertmanager drops after four evaluations."""
    at_once = [
        (rule, every) for rule, every in intervals() if "alert" in rule and "for" not in rule
    ]
    assert at_once
    assert [rule["alert"] for rule, every in at_once if every > 60] == []


def test_an_outage_is_told_by_what_is_evaluated_as_often_as_its_page():
    """It counts evaluations: with an older answer a page that cannot be read would be one."""
    read = concerned(shipped(), Scene("any", "SpecDecodeVLLMDown", at=(0,)))
    assert {every for rule, every in intervals() if rule in read} == {30}


@pytest.mark.servers
@pytest.mark.parametrize("begun", [30, 31])
def test_what_has_to_hold_for_a_quarter_of_an_hour_is_told_after_14_or_15_minutes(begun, tmp_path):
    """At the pace of its group, which first sees it in minute 30 or, a minute late, in 32."""
    name, seen = "SpecDecodePluginFailing", 30 + (begun > 30) * 2
    (every,) = (every for rule, every in intervals() if rule.get("alert") == name)
    labels = {"engine": "0", "state": "refused", "version": "1", "vllm_version": "0.32.0"}
    pod = Pod("refused").plain("specdec_plugin_info", (begun, 0), (40, 1), **labels)
    pod.sidecar_fires(**labels)
    scene = Scene("refused", name, at=(seen + 13, seen + 14)).with_pods(pod)
    passes(tmp_path, scene, every=f"{every}s")


def test_the_rules_and_the_push_know_the_same_errors_that_may_mean_a_dead_vllm():
    """The one has them as a regular expression, the other as a set."""
    (rule,) = (
        rule for rule in shipped() if rule.get("record") == "sidecar:specdec_unreadable:bool"
    )
    (reasons,) = re.findall(r'reason!~"([\w|]+)"', rule["expr"])
    assert set(reasons.split("|")) == NO_ANSWER


def test_a_template_reads_labels_that_an_alert_may_lack_by_index():
    """vmalert before 1.90 fails where ``$labels`` lacks one, and nothing is sent.

    Whatever the site, an alert has only the labels that its expression or the sidecar gives it.
    """
    optional = {"cluster", "namespace", "job", "pod", "engine", "rule_group"}
    for rule in shipped():
        templates = str(rule.get("annotations", {}))
        read = set(re.findall(r"\$labels\.(\w+)", templates))
        ours = {"engine"} if "CoverageLow" in templates or "PluginFailing" in templates else set()
        assert not read & (optional - ours), rule["alert"]


class Silence(Scene):
    """Expects that no alert fires but ``reads``."""

    def test(self, text, **scraped):
        expected = [
            {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []}
            for minute in self.at
            for alert in ALERTS
            if alert not in self.reads
        ]
        return super().test(text, **scraped) | {"alert_rule_test": expected}


def is_silent(directory, name, pods, reads=()):
    passes(
        directory, Silence(name, None, at=(50, 77, 115), reads=reads).with_pods(*pods), shipped()
    )


@pytest.mark.slow
@pytest.mark.servers
def test_a_healthy_fleet_is_silent(tmp_path):
    """Two pods that speculate, one that has just begun, and a plain one.

    One of the two has restarted and has had some failed polls.
    """
    pods = [Pod("a", minutes=120), Pod("b", minutes=120), Pod("new", minutes=120, start=75)]
    for pod in pods:
        pod.bucket("0", 3, 0.85).bucket("1+", 2, 0.66).generating(2).finishing(0.63)
        pod.tpot(0.02, 0.04).cache(0.6, 1).plain("up", (120, 1))
    pods[1].restarting(60).failing(lambda number: number in {20, 21, 90})
    is_silent(
        tmp_path, "healthy", [*pods, Pod("plain", minutes=120).generating(60).tpot(0.03, 0.05)]
    )


@pytest.mark.slow
@pytest.mark.servers
def test_engines_that_pay_by_time_get_no_more_than_information_on_their_low_acceptance(tmp_path):
    pod = Pod("engines", minutes=120).drafting(5, 0.45).drafting(5, 0.45, engine="1")
    pod.timed(1.3).timed(1.3, engine="1").plain("up", (120, 1))
    is_silent(tmp_path, "engines that pay", [pod], reads=("SpecDecodeAcceptanceLow",))
    *_, (minute, sidecar) = pod.scrapes()
    (found,) = sidecar.report(minute).alerts
    assert (found.alert, found.severity) == ("SpecDecodeAcceptanceLow", "info")


@pytest.mark.slow
@pytest.mark.servers
def test_without_series_only_the_absence_fires(tmp_path):
    """Every other rule needs something to judge."""
    is_silent(tmp_path, "nothing", [scraped("other", 0, (130, 1))], reads=("SpecDecodeNoSidecar",))


def test_an_alert_on_a_verdict_says_by_how_much_it_outlasts_its_threshold():
    """A verdict by the speedup rises only clearly above it, one by the rate once that is certain.

    A text that says "below the threshold" would then be wrong.
    """
    said = [rule.description for rule in alert_rules()]
    certain = [text for text in said if "once it is certain to be above it" in text]
    assert len(certain) == 3
    assert all("below" not in description for description in certain)
    clear = [
        description for description in said if "the alert ends clearly above it" in description
    ]
    assert len(clear) == 2
    assert all("below" not in description for description in clear)


def test_every_metric_and_threshold_in_a_rule_is_in_the_contract():
    """A rule on a metric that is not exported never fires, which goes unnoticed."""
    known = {metric.name for metric in METRICS}
    thresholds = {*Thresholds.model_fields, "latency_window"}
    for rule in shipped():
        text = rule["expr"] + str(rule.get("annotations", ""))
        assert set(re.findall(r"(?<![\w:/.-])specdec_\w+(?![\w:])", text)) <= known
        assert set(re.findall(r"specdec_threshold\{name=[\"'](\w+)", text)) <= thresholds


def test_every_recorded_series_that_is_read_is_recorded_and_the_other_way_round():
    """One that nobody reads costs each Prometheus for nothing."""
    rules = shipped()
    made = {rule["record"] for rule in rules if "record" in rule}
    read = set().union(*(recorded(f"{rule['expr']} {rule.get('annotations')}") for rule in rules))
    dashboards = " ".join(path.read_text() for path in (RULES.parent / "dashboards").glob("*.json"))
    assert made == read | (made & recorded(dashboards))


@pytest.mark.measured  # not every rule has been run through all of its changes yet
@pytest.mark.servers
@pytest.mark.limit(1800)  # promtool runs each change; `make mutations` makes all of them
def test_no_rule_can_be_changed_unnoticed():
    """One change in twenty is made.

    Changes are of operators, thresholds, gates, numbers, selectors, aggregations and ``for``.
    """
    assert alert_mutations.check(every=20)[1] == []
