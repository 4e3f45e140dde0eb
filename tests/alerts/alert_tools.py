"""Scenes for ``promtool test rules``: what is exported, and which alerts are expected when."""

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_plus

import yaml

RULES = Path(__file__).parents[2] / "alerts"
RUNBOOKS = "https://runbooks.example"
DASHBOARD = "https://grafana.example/d/specdec-operator?from=now-6h&to=now"


@dataclass
class Firing:
    """One expected alert: its labels except job and alertname, its description, and its context if requested."""

    severity: str
    description: str
    labels: dict
    context: str | None = None

    def expected(self, name, summary):
        labels = dict(self.labels)
        if "instance" in labels:
            labels |= {"job": "vllm", "namespace": labels.get("namespace", "prod")}
        annotations = {
            "summary": summary.replace("MODEL", labels.get("model_name", "")),
            "description": self.description,
            "runbook_url": f"{RUNBOOKS}/{name}.md",
            "dashboard_url": DASHBOARD + variables(labels),
        }
        if self.context is not None:
            annotations["context"] = self.context
        return {"exp_labels": labels | {"severity": self.severity}, "exp_annotations": annotations}


@dataclass
class Scene:
    """``checks`` are (minute, what fires); ``numbers`` are (minute, expression, {labels: value}).

    The annotation ``context`` is left out of the rules unless a check expects it.
    """

    name: str
    alert: str | None
    summary: str
    pods: list
    checks: list = field(default_factory=list)
    numbers: list = field(default_factory=list)
    reads: tuple = ()  # alerts that the alert's expression reads
    edges: tuple = ()  # minutes whose outcome needs a sample a minute

    def test(self, text=None):
        """The input of promtool; series that ``text``, the rules' text, does not name are left out."""
        series = {}
        for pod in self.pods:
            assert not set(series) & set(pod.series), self.name
            series |= {one: values for one, values in pod.series.items() if text is None or _used(one, text)}
        return {
            "name": self.name,
            "interval": "1m",
            "input_series": [{"series": one, "values": values} for one, values in series.items()],
            "alert_rule_test": [
                {
                    "eval_time": f"{minute}m",
                    "alertname": self.alert,
                    "exp_alerts": [one.expected(self.alert, self.summary) for one in firing],
                }
                for minute, firing in self.checks
            ],
            "promql_expr_test": [
                {
                    "expr": expr,
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
                }
                for minute, expr, samples in self.numbers
            ],
        }


def variables(labels):
    """A dashboard's variables in a link, one for each label."""
    return "".join(f"&var-{key}={quote_plus(labels[key])}" for key in sorted(labels))


def shipped():
    """The rules as they are committed, in the order in which they are evaluated."""
    contents = [yaml.safe_load((RULES / name).read_text()) for name in ("recording.yaml", "alerts.yaml")]
    return [rule for content in contents for group in content["groups"] for rule in group["rules"]]


def without_context(rule):
    annotations = {name: text for name, text in rule.get("annotations", {}).items() if name != "context"}
    return rule | ({"annotations": annotations} if annotations else {})


def promtool(directory, scenes, rules=None):
    """The output of promtool if a scene fails, else None; ``rules`` replace the committed ones."""
    with_context = any(one.context is not None for scene in scenes for _, firing in scene.checks for one in firing)
    kept = [rule if with_context else without_context(rule) for rule in (shipped() if rules is None else rules)]
    text = None if rules is None else "\n".join(rule["expr"] + str(rule.get("annotations")) for rule in kept)
    groups = [{"name": "all", "rules": kept}]
    (directory / "rules.yaml").write_text(json.dumps({"groups": groups}))
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [scene.test(text) for scene in scenes],
    }
    (directory / "scenes.yaml").write_text(json.dumps(document))  # JSON is also YAML, and quick to write
    environment = os.environ | {"TMPDIR": str(directory), "GOGC": "400"}  # a seventh less time
    command = ["promtool", "test", "rules", "scenes.yaml"]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    return None if done.returncode == 0 else done.stdout + done.stderr


def assert_valid(directory, rules):
    (directory / "rules.yaml").write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    command = ["promtool", "check", "rules", "--lint=none", "rules.yaml"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def _used(series, text):
    metric, _, labels = series.partition("{")
    if metric == "specdec_threshold":
        return any(name in text for name in re.findall(r'name="(\w+)"', labels))
    return metric in text
