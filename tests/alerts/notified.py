"""Who is told of an alert, and when: what Alertmanager makes of the alerts that fire.

A model of its inhibition, routes and groups, which reads the shipped configuration. Where the real
one waits some seconds to group alerts, this one does not wait.
"""

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from tests.alerts.scene import RULES, promql_series, shipped_groups

CONFIG = RULES / "alertmanager" / "alertmanager.yaml"
EVERY = 2  # minutes between two looks at what fires
_UNITS = {"d": 1440, "h": 60, "m": 1, "s": 1 / 60}
# A series as promtool prints it.
_SERIES = re.compile(r"\{([^}]*)\} ([^\s,]+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"(.+)"')


@dataclass(frozen=True)
class Notice:
    """The first notification of a group of alerts, or the first after all of them had ended."""

    minute: float
    receiver: str
    alert: str
    group: tuple


@cache
def configuration():
    return yaml.safe_load(CONFIG.read_text())


def matches(matchers, alert):
    return all(_fits(*_MATCHER.fullmatch(matcher).groups(), alert) for matcher in matchers)


def _fits(name, operator, value, alert):
    label = alert.get(name, "")
    hit = bool(re.fullmatch(value, label)) if "~" in operator else label == value
    return not hit if operator.startswith("!") else hit


def inhibited(alert, firing):
    """Whether another one that fires explains it.

    One that matches both sides of a rule inhibits nothing that does so too.
    """
    for rule in configuration()["inhibit_rules"]:
        source, target = rule["source_matchers"], rule["target_matchers"]
        if not matches(target, alert):
            continue
        for other in firing:
            is_source = matches(source, other) and (
                not matches(target, other) or not matches(source, alert)
            )
            alike = all(other.get(name, "") == alert.get(name, "") for name in rule["equal"])
            if other is not alert and is_source and alike:
                return True
    return False


def route_of(alert):
    """The first route that takes it and ends there; the webhook's goes on."""
    top = configuration()["route"]
    for route in top["routes"]:
        if not route.get("continue") and matches(route["matchers"], alert):
            return {"group_by": top["group_by"]} | route
    return top


def receiver_of(alert):
    return route_of(alert)["receiver"]


def notices(firing):
    """What is sent, of the alerts that fire by minute."""
    open_groups, sent = set(), []
    for minute, alerts in sorted(firing.items()):
        groups = {
            (receiver_of(alert), *(alert.get(label, "") for label in route_of(alert)["group_by"]))
            for alert in alerts
            if not inhibited(alert, alerts)
        }
        for receiver, alert, *rest in sorted(groups - open_groups):
            sent.append(Notice(minute, receiver, alert, tuple(rest)))
        open_groups = groups
    return [notice for notice in sent if notice.receiver != "nobody"]


def firing(pods, minutes, seconds=30):
    """By minute, the labels of the alerts that the shipped rules fire.

    In their own groups, but all every 30 seconds: promtool has no interval of a group's own.
    """
    found = by_rules(
        pods, 'ALERTS{alertstate="firing"}', range(EVERY, minutes, EVERY), seconds=seconds
    )
    return {minute: [labels for labels, _ in series] for minute, series in found.items()}


def by_rules(pods, expression, minutes, *, seconds, every="30s"):
    """At each of some minutes what an expression selects of what the shipped rules make of pods.

    It is labels, the name among them, and value. The rules are evaluated ``every`` so often, pods
    scraped every ``seconds``.
    """
    groups = [
        group | {"rules": [_without_texts(rule) for rule in group["rules"]]}
        for group in shipped_groups()
    ]
    text = "\n".join(str(rule) for group in groups for rule in group["rules"])
    # An expectation that fails makes promtool print what there is.
    tests = [
        {
            "expr": expression,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": "none", "value": 1}],
        }
        for minute in minutes
    ]
    test = {
        "interval": f"{seconds}s",
        "input_series": promql_series(pods, text, seconds),
        "promql_expr_test": tests,
    }

    found = {minute: [] for minute in minutes}
    for part in _promtool(groups, test, every).split("expr: ")[1:]:
        time, got = re.search(r"time: (\w+)", part)[1], part.partition("got:")[2]
        minute = round(
            sum(int(value) * _UNITS[unit] for value, unit in re.findall(r"(\d+)([dhms])", time))
        )
        found[minute] = [
            (dict(_LABEL.findall(labels)), float(value)) for labels, value in _SERIES.findall(got)
        ]
    return found


def _without_texts(rule):
    return {name: value for name, value in rule.items() if name != "annotations"}


def _promtool(groups, test, every):
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": every,
        # Else it is another one each time, and what fires first may be another alert.
        "group_eval_order": [group["name"] for group in groups],
        "tests": [test],
    }
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "rules.yaml").write_text(json.dumps({"groups": groups}))
        Path(directory, "test.yaml").write_text(json.dumps(document))
        done = subprocess.run(
            ["promtool", "test", "rules", "test.yaml"],
            cwd=directory,
            env=os.environ | {"TMPDIR": directory, "GOGC": "400"},
            capture_output=True,
            text=True,
            check=False,
        )
    printed = done.stdout + done.stderr
    assert "got:" in printed, printed[:2000]
    return printed
