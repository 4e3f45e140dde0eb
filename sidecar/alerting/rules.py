"""The shipped alert rules, ``alerts/alerts.yaml``, as the direct push reads them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from sidecar.shipped import shipped

# What a summary or a description may quote; anything else needs Prometheus.
_QUOTE: Final = re.compile(r"\{\{ \$(?:labels\.(\w+)|value \| (?:humanizePercentage|printf \"(%\.\d[gf])\")) \}\}")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert; its condition must hold for ``wait`` seconds, and the alert outlasts it by ``keep`` seconds."""

    name: str
    labels: Mapping[str, str]
    wait: float
    keep: float
    summary: str
    description: str

    def text(self, template: str, labels: Mapping[str, str], value: float) -> str:
        """``summary`` or ``description`` with an alert's labels and value filled in."""

        def quoted(match: re.Match[str]) -> str:
            label, form = match.groups()
            if label:
                return labels.get(label, "")
            return form % value if form else f"{100 * value:.4g}%"

        return _QUOTE.sub(quoted, template)


def load_rules() -> dict[str, Rule]:
    """All alerts by name; the second of two with the same name is under ``name/severity``."""
    groups = yaml.safe_load(shipped("alerts.yaml").read_text(encoding="utf-8"))["groups"]
    rules: dict[str, Rule] = {}
    for entry in (entry for group in groups for entry in group["rules"]):
        name, labels, texts = entry["alert"], entry["labels"], entry["annotations"]
        wait, keep = (_seconds(entry.get(key, "0s")) for key in ("for", "keep_firing_for"))
        key = f"{name}/{labels['severity']}" if name in rules else name
        rules[key] = Rule(name, labels, wait, keep, texts["summary"], texts["description"])
    return rules


def _seconds(duration: str) -> float:
    return float(duration[:-1]) * _UNITS[duration[-1]]
