"""Scenes for ``promtool test rules``: what is scraped, and which alerts are expected when."""

import importlib
import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import quote_plus

import yaml

from scripts.alert_texts import alert_rules
from sidecar.alerting.rule import filled
from tests.alerts.pods import DASHBOARDS, RUNBOOKS, SCRAPE

RULES = Path(__file__).parents[2] / "alerts"
RULE_FILES = ("recording.yaml", "alerts.yaml")
_RECORDED = re.compile(r"\b[a-z_]+:specdec_[\w:]+\b")
_CONDITIONAL = re.compile(r"\{\{ with \$labels\.instance \}\}.+\{\{ end \}\}")
_REGISTERED = []


def scenes(function):
    """Decorates a function that yields scenes: all of them are tested."""
    _REGISTERED.append(function)
    return function


@cache
def all_scenes():
    """What the decorated functions of all modules ``scenes_*.py`` yield."""
    for path in sorted(Path(__file__).parent.glob("scenes_*.py")):
        importlib.import_module(f"{__package__}.{path.stem}")
    return [scene for function in _REGISTERED for scene in function()]


def alone(own):
    """The labels of what is scraped from a pod that has ``own``: one set, of the pod's."""
    return [own]


@dataclass
class Scene:
    """At the minutes ``at`` only what the pods and ``fleet`` say fires.

    At the first of these minutes nothing fires. A scene without an alert is about ``records``.
    """

    name: str
    alert: str | None
    at: tuple
    fleet: list = ()  # what fires besides the pods' own
    reads: tuple = ()  # alerts that the alert's expression reads
    needs_prometheus: bool = False  # whether the direct push sees it otherwise
    pods: list = ()
    # At the last minute: by name, the (labels, value) of a rule that no alert reads.
    records: dict = field(default_factory=dict)

    def with_pods(self, *pods):
        for pod in pods:
            pod.minutes = self.end + 1 if pod.minutes is None else pod.minutes
        self.pods = pods
        return self

    @property
    def firings(self):
        every = (*self.fleet, *(firing for pod in self.pods for firing in pod.firings))
        return [firing for firing in every if firing.alert in {None, self.alert}]

    @property
    def end(self):
        """The minute of the last check."""
        return max(self.at)

    def firing(self, minute):
        """What is expected to fire at a minute of ``at``."""
        is_first = minute == self.at[0]
        return [
            firing
            for firing in self.firings
            if not is_first and firing.since <= minute <= firing.until
        ]

    def test(self, text, seconds=SCRAPE, scraped_as=alone):
        """The input of promtool, without series that ``text``, the rules' text, does not name.

        Every pod is scraped every ``seconds``, once with each of the label sets that ``scraped_as``
        gives for its own.
        """
        return {
            "name": self.name,
            "interval": f"{seconds}s",
            "input_series": promql_series(self.pods, text, seconds, scraped_as),
            "alert_rule_test": [
                {
                    "eval_time": f"{minute}m",
                    "alertname": self.alert,
                    "exp_alerts": [
                        alert
                        for firing in self.firing(minute)
                        for alert in _expected(self.alert, firing, scraped_as)
                    ],
                }
                for minute in self.at
                if self.alert
            ],
            "promql_expr_test": [
                {
                    "expr": f"round({name}, 0.001)",
                    "eval_time": f"{self.end}m",
                    "exp_samples": [
                        {"labels": _named("", **labels), "value": value} for labels, value in series
                    ],
                }
                for name, series in self.records.items()
            ],
        }


def promql_series(pods, text, seconds, scraped_as=alone):
    """What is scraped from ``pods``, as promtool reads it; see ``Scene.test``."""
    series = {}
    for pod in pods:
        for own in scraped_as(pod.own):
            scraped = {
                _named(metric, **own, **dict(labels)): values
                for (metric, labels), values in pod.series(seconds).items()
                if (dict(labels)["name"] if metric == "specdec_threshold" else metric) in text
            }
            assert not set(series) & set(scraped), own
            series |= scraped
    return [{"series": name, "values": values} for name, values in series.items()]


def _named(metric, /, **labels):
    pairs = [f'{key}="{value}"' for key, value in labels.items()]
    return f"{metric}{{{','.join(pairs)}}}"


def _expected(name, firing, scraped_as):
    """As promtool expects it, once for each way in which its pod is scraped."""
    rules = [rule for rule in _texts() if rule.name == name]
    rule = next((rule for rule in rules if rule.severity == firing.severity), rules[0])
    own = {
        name: firing.labels[name]
        for name in ("namespace", "job", "instance", "pod")
        if name in firing.labels
    }
    for site in scraped_as(own):
        labels = {name: value for name, value in firing.labels.items() if name not in own} | site
        description = _CONDITIONAL.sub(
            labels.get("instance", "any sidecar at all"), rule.description
        )
        variables = "".join(f"&var-{key}={quote_plus(labels[key])}" for key in sorted(labels))
        annotations = {
            "summary": filled(rule.summary, labels, firing.value),
            "description": filled(description, labels, firing.value),
            **({"first": rule.first} if rule.first else {}),
            "runbook_url": f"{RUNBOOKS}/{name}.md",
            "dashboard_url": f"{DASHBOARDS}/d/specdec-operator?from=now-6h&to=now{variables}",
        }
        yield {
            "exp_labels": labels | rule.labels,
            "exp_annotations": annotations | firing.annotations,
        }


@cache
def _texts():
    """Of each alert; they take a second to read."""
    return tuple(alert_rules())


@cache
def shipped_groups():
    """The groups of rules as they are committed."""
    contents = [yaml.safe_load((RULES / name).read_text()) for name in RULE_FILES]
    return [group for content in contents for group in content["groups"]]


@cache
def shipped():
    """The rules of all groups, in the order in which scenes evaluate them, all equally often."""
    return [rule for group in shipped_groups() for rule in group["rules"]]


@cache
def recorded(text):
    """The recorded series that an expression or an annotation names."""
    return frozenset(_RECORDED.findall(text))


def concerned(rules, scene):
    """The rules that a scene is about, with all that they depend on.

    The others would only take time. The annotation ``context`` is left out unless the scene
    expects it.
    """
    if not any("context" in firing.annotations for firing in scene.firings):
        rules = [_without_context(rule) for rule in rules]
    alerts = [
        rule for rule in rules if scene.alert and rule.get("alert") in {scene.alert, *scene.reads}
    ]
    read = (recorded(f"{rule['expr']} {rule.get('annotations')}") for rule in alerts)
    waiting, needed = set(scene.records).union(*read), set()
    while waiting:
        needed |= waiting
        read = (recorded(rule["expr"]) for rule in rules if rule.get("record") in waiting)
        waiting = set().union(*read) - needed
    return [rule for rule in rules if rule.get("record") in needed or rule in alerts]


def promtool(directory, scene, rules, *, every="1m", **scraped):
    """The output of promtool if the scene fails under these rules, else None.

    They are evaluated ``every`` so often. ``scraped`` is as in ``Scene.test``.
    """
    text = "\n".join(rule["expr"] + str(rule.get("annotations")) for rule in rules)
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": every,
        "tests": [scene.test(text, **scraped)],
    }
    # JSON is also YAML, and quick to write.
    (directory / "scenes.yaml").write_text(json.dumps(document))
    return _run(directory, rules, "test", "rules", "scenes.yaml")


def assert_valid(directory, rules):
    failed = _run(directory, rules, "check", "rules", "--lint=none", "rules.yaml")
    assert failed is None, failed


def _without_context(rule):
    annotations = {
        name: text for name, text in rule.get("annotations", {}).items() if name != "context"
    }
    return rule | ({"annotations": annotations} if annotations else {})


def _run(directory, rules, *arguments):
    """The output of promtool beside the file rules.yaml, if it fails."""
    (directory / "rules.yaml").write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    environment = os.environ | {"TMPDIR": str(directory), "GOGC": "400"}  # a seventh less time
    command = ["promtool", *arguments]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    # killed, it has judged nothing: neither has a scene failed nor was a changed rule noticed
    assert done.returncode >= 0, f"promtool was ended by signal {-done.returncode}"
    said = f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return None if done.returncode == 0 else said
