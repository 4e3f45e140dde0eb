"""Scenes for ``promtool test rules``: what is scraped, and which alerts are expected when."""

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from urllib.parse import quote_plus

import yaml

from sidecar.alerting.rules import load_rules
from tests.alerts.pods import DASHBOARDS, JOB, RUNBOOKS, SCRAPE

RULES = Path(__file__).parents[2] / "alerts"
_RECORDED = re.compile(r"\b[a-z_]+:specdec_[\w:]+\b")
_CONDITIONAL = re.compile(r"\{\{ with \$labels\.instance \}\}.+\{\{ end \}\}")


def alone(own):
    """The labels of what is scraped from a pod that has ``own``: one set, of the pod's."""
    return [own]


@dataclass
class Firing:
    """One expected alert: its labels without the rule's own (None: it has none), and the value that its texts quote."""

    labels: dict
    value: float = 1.0
    severity: str | None = None
    annotations: dict = field(default_factory=dict)  # those that differ from what the rule and the settings give

    def expected(self, name, scraped_as):
        """As promtool expects it, once for each way in which its pod is scraped."""
        rules = load_rules()
        rule = rules.get(f"{name}/{self.severity}", rules[name])
        labels = {"namespace": "prod"} | self.labels if self.labels else {}
        labels = {name: value for name, value in labels.items() if value is not None}
        own = {name: labels.pop(name) for name in ("namespace", "job", "instance") if name in labels}
        for site in scraped_as(own):
            every = labels | site
            description = _CONDITIONAL.sub(every.get("instance", "any sidecar at all"), rule.description)
            variables = "".join(f"&var-{key}={quote_plus(every[key])}" for key in sorted(every))
            annotations = {
                "summary": rule.text(rule.summary, every, self.value),
                "description": rule.text(description, every, self.value),
                "runbook_url": f"{RUNBOOKS}/{name}.md",
                "dashboard_url": f"{DASHBOARDS}/d/specdec-operator?from=now-6h&to=now{variables}",
            }
            yield {"exp_labels": every | rule.labels, "exp_annotations": annotations | self.annotations}


def of(instance, value=1.0, *, model="m", severity=None, context=None, **labels):
    """An alert on a pod's model."""
    where = {"instance": f"{instance}:9911", "job": JOB, "model_name": model}
    return Firing(where | labels, value, severity, {"context": "\n".join(context)} if context else {})


of_sidecar = partial(of, model=None)


@dataclass
class Scene:
    """``checks`` are (minute, what fires)."""

    name: str
    alert: str | None
    pods: list
    checks: list = field(default_factory=list)
    reads: tuple = ()  # alerts that the alert's expression reads

    def __post_init__(self):
        for pod in self.pods:
            pod.minutes = self.end + 1 if pod.minutes is None else pod.minutes

    @property
    def end(self):
        """The minute of the last check."""
        return max((minute for minute, _ in self.checks), default=0)

    def test(self, text, seconds=SCRAPE, scraped_as=alone):
        """The input of promtool, without series that ``text``, the rules' text, does not name.

        Every pod is scraped every ``seconds``, once with each of the label sets that ``scraped_as`` gives for its own.
        """
        series = {}
        for pod in self.pods:
            for own in scraped_as(pod.own):
                found = {
                    _named(metric, **own, **dict(labels)): values
                    for (metric, labels), values in pod.series(seconds).items()
                    if (dict(labels)["name"] if metric == "specdec_threshold" else metric) in text
                }
                assert not set(series) & set(found), self.name
                series |= found
        return {
            "name": self.name,
            "interval": f"{seconds}s",
            "input_series": [{"series": one, "values": values} for one, values in series.items()],
            "alert_rule_test": [
                {
                    "eval_time": f"{minute}m",
                    "alertname": self.alert,
                    "exp_alerts": [each for one in firing for each in one.expected(self.alert, scraped_as)],
                }
                for minute, firing in self.checks
            ],
        }


def _named(metric, /, **labels):
    pairs = [f'{key}="{value}"' for key, value in labels.items()]
    return f"{metric}{{{','.join(pairs)}}}"


@cache
def shipped():
    """The rules as they are committed, in the order in which they are evaluated."""
    contents = [yaml.safe_load((RULES / name).read_text()) for name in ("recording.yaml", "alerts.yaml")]
    return [rule for content in contents for group in content["groups"] for rule in group["rules"]]


def recorded(text):
    """The recorded series that an expression or an annotation names."""
    return set(_RECORDED.findall(text))


def concerned(rules, scene):
    """The rules that a scene is about, with all that they depend on; the others would only take time.

    The annotation ``context`` is left out unless a check expects it.
    """
    if not any("context" in one.annotations for _, firing in scene.checks for one in firing):
        rules = [_without_context(rule) for rule in rules]
    alerts = [rule for rule in rules if scene.alert and rule.get("alert") in {scene.alert, *scene.reads}]
    waiting = set().union(*(recorded(f"{rule['expr']} {rule.get('annotations')}") for rule in alerts))
    found = set()
    while waiting:
        found |= waiting
        read = (recorded(rule["expr"]) for rule in rules if rule.get("record") in waiting)
        waiting = set().union(*read) - found
    return [rule for rule in rules if rule.get("record") in found or rule in alerts]


def promtool(directory, scene, rules, **scraped):
    """The output of promtool if the scene fails under these rules, else None; ``scraped`` as in ``Scene.test``."""
    text = "\n".join(rule["expr"] + str(rule.get("annotations")) for rule in rules)
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [scene.test(text, **scraped)]}
    (directory / "scenes.yaml").write_text(json.dumps(document))  # JSON is also YAML, and quick to write
    return _run(directory, rules, "test", "rules", "scenes.yaml")


def assert_valid(directory, rules):
    failed = _run(directory, rules, "check", "rules", "--lint=none", "rules.yaml")
    assert failed is None, failed


def _without_context(rule):
    annotations = {name: text for name, text in rule.get("annotations", {}).items() if name != "context"}
    return rule | ({"annotations": annotations} if annotations else {})


def _run(directory, rules, *arguments):
    """The output of promtool beside the file rules.yaml, if it fails."""
    (directory / "rules.yaml").write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    environment = os.environ | {"TMPDIR": str(directory), "GOGC": "400"}  # a seventh less time
    command = ["promtool", *arguments]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stdout + done.stderr
