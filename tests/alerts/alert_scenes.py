"""All scenes, and which of them relate to a rule."""

import re

from tests.alerts import (
    alert_scenes_acceptance,
    alert_scenes_fleet,
    alert_scenes_health,
    alert_scenes_latency,
    alert_scenes_speedup,
)

SCENES = [
    *alert_scenes_fleet.SCENES,
    *alert_scenes_acceptance.SCENES,
    *alert_scenes_latency.SCENES,
    *alert_scenes_health.SCENES,
    *alert_scenes_speedup.SCENES,
]

_RECORDED = re.compile(r"\b[a-z_]+:specdec_[\w:]+\b")


def recorded(text):
    """The recorded series that an expression or an annotation names."""
    return set(_RECORDED.findall(text))


def needed(rules, names):
    """The recording rules on which ``names`` depend, directly or indirectly."""
    found, waiting = set(), set(names)
    while waiting:
        found |= waiting
        reached = set().union(*(recorded(rule["expr"]) for rule in rules if rule.get("record") in waiting))
        waiting = reached - found
    return [rule for rule in rules if rule.get("record") in found]


def concerned(rules, scene):
    """The rules that a scene is about, with all that they depend on; the others would only take time."""
    alerts = [rule for rule in rules if scene.alert and rule.get("alert") in {scene.alert, *scene.reads}]
    names = set().union(*(recorded(f"{rule['expr']} {rule.get('annotations')}") for rule in alerts))
    return [*needed(rules, names | {name for _, query, _ in scene.numbers for name in recorded(query)}), *alerts]


def dependents(rules, record):
    """The recorded series that depend on ``record``, itself included."""
    found = {record}
    while True:
        more = {rule["record"] for rule in rules if "record" in rule and recorded(rule["expr"]) & found}
        if more <= found:
            return found
        found |= more
