"""``python -m sidecar.alerting.rules DIRECTORY``: the catalogue as Prometheus' rule files (``scripts/rules``).

The files stay inside what Prometheus 2.42 accepts.
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from sidecar.alerting.alert import DASHBOARDS, RUNBOOKS, Alert, Links, rule_annotations
from sidecar.alerting.catalogue import catalogue
from sidecar.alerting.recording import Recording, fleet_rules, past_rules, pod_rules
from sidecar.alerting.timing import SHIPPED, Timing
from sidecar.settings.field_types import render_duration

_HEAD = "# Written by scripts/rules from sidecar/alerting/; change it there.\n"


def rule_files(timing: Timing = SHIPPED, links: Links | None = None) -> dict[str, dict[str, Any]]:
    """The rule files by name, as YAML would read them."""
    pod, fleet, past = (_recordings(rules) for rules in (pod_rules(timing), fleet_rules(timing), past_rules(timing)))
    alerts = [_alert(alert, timing, links or Links()) for alert in catalogue(timing)]
    return {
        "recording.yaml": {
            "groups": [
                _group("specdec-pod", timing.interval, pod),
                _group("specdec-fleet", timing.interval, fleet),
                _group("specdec-past", timing.past_interval, past),
            ]
        },
        "alerts.yaml": {"groups": [_group("specdec-alerts", timing.interval, alerts)]},
    }


def shown(content: Mapping[str, Any]) -> str:
    """A rule file's text; several lines of PromQL stay several lines."""
    return _HEAD + yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)


def _group(name: str, interval: float, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "interval": render_duration(interval), "rules": rules}


def _recordings(rules: Iterable[Recording]) -> list[dict[str, Any]]:
    return [
        {"record": rule.record, "expr": rule.expr} | ({"labels": dict(rule.labels)} if rule.labels else {})
        for rule in rules
    ]


def _alert(alert: Alert, timing: Timing, links: Links) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": timing.held(alert.wait)} if alert.wait else {}),
        **({"keep_firing_for": timing.held(alert.keep)} if alert.keep and timing.pace else {}),
        "labels": {"severity": str(alert.severity)},
        "annotations": rule_annotations(alert, links),
    }


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as a block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def main() -> None:
    """Writes the files; the exit code is 0."""
    parser = argparse.ArgumentParser(prog="rules", description="Writes the Prometheus rules.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--runbooks", default=RUNBOOKS, metavar="URL", help="where alerts/runbooks is served")
    parser.add_argument("--dashboards", default=DASHBOARDS, metavar="URL", help="Grafana's address")
    arguments = parser.parse_args()
    links = Links(arguments.runbooks.rstrip("/"), arguments.dashboards.rstrip("/"))
    for name, content in rule_files(links=links).items():
        (arguments.directory / name).write_text(shown(content))


if __name__ == "__main__":
    main()
