"""Writes the rules of the alerts that the direct push sends: their times, severities and texts.

The rules in ``alerts/alerts.yaml`` are the original.

Usage: alert_texts.py
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import yaml

from sidecar.alerting.rule import Rule
from sidecar.analysis.pod_alert import Alert

_ROOT: Final = Path(__file__).resolve().parent.parent
RULES: Final = _ROOT / "alerts" / "alerts.yaml"
TEXTS: Final = _ROOT / "sidecar" / "alerting" / "texts.py"
NOT_PUSHED: Final = frozenset({("SpecDecodeVLLMDown", "warning")})
"""Rules of the alerts in ``Alert`` that compare a pod with others: its push pages."""
# What a summary or a description may quote; anything else needs Prometheus.
_QUOTE: Final = re.compile(
    r"\{\{ (?:\$labels\.(\w+)|index \$labels \"(\w+)\""
    r"|\$value \| (?:humanizePercentage|printf \"%(\.\d[gf])\")) \}\}"
)
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
# The rules on rates and times count the full minutes at which they hold, both ends of ten minutes
# included, since their `for` would begin anew with Prometheus.
_COUNTED: Final = re.compile(r"count_over_time\([\w:]+\[25m:1m\]\) >= (\d+)")
_HEAD: Final = '''"""The rules of the alerts that the direct push sends, by alert and severity.

Written by scripts/docs from alerts/alerts.yaml.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sidecar.alerting.rule import Rule

# ruff: noqa: E501 - texts are as they are sent
# fmt: off
_RULES: Final[tuple[Rule, ...]] = (
'''
_TAIL: Final = """)
# fmt: on
RULES: Final[Mapping[tuple[str, str], Rule]] = MappingProxyType(
    {(rule.name, rule.severity): rule for rule in _RULES}
)
"""


def alert_rules() -> Iterator[Rule]:
    """The rules of all alerts, in the order of the file."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for entry in (entry for group in groups for entry in group["rules"]):
        texts = entry["annotations"]
        yield Rule(
            name=entry["alert"],
            severity=entry["labels"]["severity"],
            scope=entry["labels"]["scope"],
            wait=_wait(entry),
            keep=_seconds(entry.get("keep_firing_for", "0s")),
            summary=_with_fields(texts["summary"]),
            description=_with_fields(texts["description"]),
            first=texts.get("first", ""),
        )


def _wait(entry: Mapping[str, Any]) -> float:
    """Seconds for which a rule's condition must hold."""
    counted = _COUNTED.search(entry["expr"])
    return 60.0 * (int(counted[1]) - 1) if counted else _seconds(entry.get("for", "0s"))


def _seconds(duration: str) -> float:
    return float(duration[:-1]) * _UNITS[duration[-1]]


def _with_fields(template: str) -> str:
    """A template of Prometheus with Python's fields instead."""

    def field(match: re.Match[str]) -> str:
        always, maybe, form = match.groups()
        if label := always or maybe:
            return f"{{{label}}}"
        return f"{{value:{form}}}" if form else "{percent}"

    return _QUOTE.sub(field, template)


def texts_module() -> str:
    """The whole of ``sidecar/alerting/texts.py``."""
    lines = []
    for rule in alert_rules():
        if rule.name in set(Alert) and (rule.name, rule.severity) not in NOT_PUSHED:
            values = [(one.name, getattr(rule, one.name)) for one in fields(rule)]
            given = [f"        {name}={_literal(one)},\n" for name, one in values if one != ""]
            lines += ["    Rule(\n", *given, "    ),\n"]
    return f"{_HEAD}{''.join(lines)}{_TAIL}"


def _literal(value: float | str) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


if __name__ == "__main__":
    TEXTS.write_text(texts_module(), encoding="utf-8")
