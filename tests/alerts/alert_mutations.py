"""Changes each rule in every place, one at a time, and checks that a scene fails.

``python -m tests.alerts.alert_mutations [RULE ...]`` prints the table. A change that no scene notices is a rule that
could break unnoticed.
"""

import dataclasses
import re
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.alerts.alert_scenes import SCENES, dependents, needed, recorded
from tests.alerts.alert_tools import assert_valid, promtool, shipped

_FLIPPED = {"<": ">", ">": "<", ">=": "<", "==": "!="}
_SET = {"and": "unless", "unless": "and", "or": "and"}
_ARITHMETIC = {"/": "*", "*": "/", "+": "-", "-": "+"}
_ASKED_FOR = re.compile(r"unless ignoring \([\w, ]+\) $")  # whether there is a threshold at all
_AGGREGATED = {"sum": "max", "avg": "sum", "max": "min", "min": "max", "count": "max"}

# No scene notices these: the scene refuses far more than 6; an alert without its recording rules has a test of its own.
_UNNOTICED = (
    "SpecDecodeProxyRefusing: 3 -> 6.0 in: ",
    "SpecDecodeRulesFailing: removed: or label_replace(sum without (engine) (specdec_engine_drafts_total) unless pod:",
)


@dataclass(frozen=True)
class Mutant:
    """``rule`` is the index of the rule that ``changed`` replaces."""

    rule: int
    kind: str
    what: str
    changed: dict


def mutants(rules):
    for index, rule in enumerate(rules):
        for kind, what, expr in _of_expression(rule["expr"]):
            yield Mutant(index, kind, what, rule | {"expr": expr})
        if "for" in rule:
            for factor in (0.5, 2):
                changed = f"{int(_seconds(rule['for']) * factor)}s"
                yield Mutant(index, "for", f"{rule['for']} -> {changed}", rule | {"for": changed})
        if "keep_firing_for" in rule:
            changed = {key: value for key, value in rule.items() if key != "keep_firing_for"}
            yield Mutant(index, "keep", "keep_firing_for removed", changed)
        if "alert" in rule:
            severity = "info" if rule["labels"]["severity"] == "warning" else "warning"
            yield Mutant(index, "label", f"severity {severity}", rule | {"labels": {"severity": severity}})


def _of_expression(expr):
    for kind, pattern, change in (
        ("operator", r"(?<= )(<|>=|>|==)(?= )", _FLIPPED.get),
        ("operator", r"\b(and|unless|or)\b(?= )", _SET.get),
        ("operator", r"(?<= )[/*+-](?= )|(?<=^)[/*+-](?= )", _ARITHMETIC.get),
        ("aggregation", r"\b(sum|avg|max|min|count)\b(?= (?:by|without))", _AGGREGATED.get),
        ("threshold", r'specdec_threshold\{name="\w+"\}', "0.9 * {}".format),
        ("threshold", r'specdec_threshold\{name="\w+"\}', "1.1 * {}".format),
        ("number", r'(?<![\w.:"|\[])\d+(?:\.\d+)?(?![\w."|\]])', _another_number),
        ("selector", r'(?<=[a-z_]=")[^"]+(?=")|(?<=~")[^"]+(?=")', lambda _: "another"),
        ("selector", r'!=(?=")', lambda _: "="),
    ):
        for match in re.finditer(pattern, expr, re.MULTILINE):
            if kind == "threshold" and _ASKED_FOR.search(expr[: match.start()]):
                continue  # its value makes no difference
            changed = expr[: match.start()] + change(match.group()) + expr[match.end() :]
            yield kind, f"{match.group()} -> {change(match.group())}{_near(expr, match)}", changed
    for match in re.finditer(r"\s+(and|unless|or)\b", expr):
        end = _end_of_clause(expr, match.end())
        yield "gate", f"removed: {' '.join(expr[match.start() : end].split())}", expr[: match.start()] + expr[end:]


def _near(expr, match):
    return f" in: {' '.join(expr[max(match.start() - 40, 0) : match.end() + 40].split())}"


def _another_number(text):
    return "1e9" if float(text) == 0 else str(float(text) * 2 if float(text) >= 1 else float(text) + 0.25)


def _end_of_clause(expr, start):
    """The end of the clause that begins at ``start``: a set operator, a comma, or its closing parenthesis."""
    depth = 0
    for index in range(start, len(expr)):
        depth += {"(": 1, ")": -1, "{": 1, "}": -1}.get(expr[index], 0)
        if depth < 0 or (depth == 0 and re.match(r"\s+(and|unless|or)\b|,", expr[index:])):
            return index
    return len(expr)


def _seconds(duration):
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def survives(rules, mutant):
    """Whether no scene related to the rule notices the change."""
    changed = [mutant.changed if index == mutant.rule else rule for index, rule in enumerate(rules)]
    original = rules[mutant.rule]
    touched = dependents(rules, original["record"]) if "record" in original else set()
    for scene in sorted(SCENES, key=_minutes):  # mostly a short one notices
        asked = [number for number in scene.numbers if recorded(number[1]) & touched]
        alerts = [rule for rule in changed if scene.alert and rule.get("alert") in {scene.alert, *scene.reads}]
        if not _concerned(scene, alerts, asked, original, needed(rules, _roots(alerts))):
            continue
        names = _roots(alerts) | {name for number in asked for name in recorded(number[1])}
        kept = [*needed(changed, names), *alerts]
        with tempfile.TemporaryDirectory() as directory:
            if promtool(Path(directory), [dataclasses.replace(scene, numbers=asked)], kept) is not None:
                return False
    return True


def _minutes(scene):
    return max(minute for minute, *_ in (*scene.checks, *scene.numbers))


def _roots(alerts):
    return set().union(*(recorded(alert["expr"] + str(alert.get("annotations"))) for alert in alerts))


def _concerned(scene, alerts, asked, original, rests_on):
    if "alert" in original:
        return original["alert"] in {scene.alert, *scene.reads}
    return bool(asked) or any(rule["record"] == original["record"] for rule in rests_on)


def table(rules, found):
    """Rows of rule, kind, mutants, and those that survived."""
    rows = defaultdict(lambda: [0, 0])
    for mutant, survived in found:
        rule = rules[mutant.rule]
        row = rows[_name(rule), mutant.kind]
        row[0] += 1
        row[1] += survived
    lines = ["| rule | changed | mutants | noticed |", "|---|---|---|---|"]
    lines += [f"| {rule} | {kind} | {made} | {made - alive} |" for (rule, kind), (made, alive) in rows.items()]
    total, alive = len(found), sum(survived for _, survived in found)
    return "\n".join([*lines, f"| all | | {total} | {total - alive} |"])


def check(names=(), jobs=2, every=1):
    """The table, and what survived; of the mutants of the named rules (none: of all) one in ``every``."""
    rules = shipped()
    made = [one for one in mutants(rules) if not names or _name(rules[one.rule]) in names][::every]
    with tempfile.TemporaryDirectory() as directory:
        assert_valid(Path(directory), [one.changed for one in made])  # a rule that can't be loaded proves nothing
    with ThreadPoolExecutor(jobs) as pool:
        found = list(zip(made, pool.map(lambda mutant: survives(rules, mutant), made), strict=True))
    alive = [f"{_name(rules[one.rule])}: {one.what}" for one, survived in found if survived]
    return table(rules, found), [one for one in alive if not one.startswith(_UNNOTICED)]


def _name(rule):
    return rule.get("alert") or rule["record"]


if __name__ == "__main__":
    printed, alive = check(sys.argv[1:])
    print(printed)  # noqa: T201 - a script prints
    print(*alive, sep="\n")  # noqa: T201 - the same
    sys.exit(bool(alive))
