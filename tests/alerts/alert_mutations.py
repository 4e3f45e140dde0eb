"""Changes each rule in every place, one at a time, and checks that a scene fails.

``python -m tests.alerts.alert_mutations [RULE ...]`` prints what no scene notices: a rule that
could break unnoticed.
"""

import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from tests.alerts.scene import all_scenes, assert_valid, concerned, promtool, shipped

_FLIPPED = {"<": ">", ">": "<", ">=": "<", "==": "!="}
_SET = {"and": "unless", "unless": "and", "or": "and"}
_ARITHMETIC = {"/": "*", "*": "/", "+": "-", "-": "+"}
_THRESHOLD = r'specdec_threshold\{name="\w+"\}'
_ASKED_FOR = re.compile(r"unless ignoring \([\w, ]+\) $")  # whether there is a threshold at all
_AGGREGATED = {"sum": "max", "avg": "sum", "max": "min", "min": "max", "count": "max"}

_UNNOTICED = (
    # Equal: one series a pod, from which the aggregation only takes a label.
    "pod:specdec_loses:bool: max -> min in: ",
    "pod:specdec_by_time:bool: max -> min in: ",
    "pod_temperature:specdec_loses:bool: max -> min in: ",
    "SpecDecodeNotSpeculating: max -> min in: ",
    # Equal for this sidecar: a rate that is low without a known time is net_negative.
    "pod:specdec_acceptance:unmeasured: removed: and pod:specdec_loses:bool == 1",
    # Equal: 0 of whatever takes only the labels.
    "pod_temperature:specdec_endings:reference1h: * -> / in: 0 ",
    # Equal: all engines' information is 1.
    "pod:specdec_adaptive:bool: max -> min in: ",
    # Equal: both are 1, or one is.
    "model:specdec_speculation:engines: * -> / in: ",
    "pod:specdec_served:timestamp_seconds: * -> / in: time() ",
    "model:specdec_requested:timestamp_seconds: * -> / in: time() ",
    "pod_temperature:specdec_acceptance:by_manner: * -> / in: ",
    "pod_temperature:specdec_acceptance:minutes2d: * -> / in: ",
    "sidecar:specdec_unscraped:timestamp_seconds: * -> / in: ",
    # Equal: while it is not known when it was last evaluated, no past is either.
    "fleet:specdec_usual:minutes: 1 -> 2.0 in: ",
    # Not scenes, which are evaluated every minute:
    # test_a_rates_past_is_the_same_however_often_it_is_evaluated.
    (
        "pod_temperature:specdec_acceptance:variance2d: * -> / in: erature:specdec_acceptance:off"
        " ^ 2 - 1) * scalar"
    ),
    # Equal: only pods and workloads that were served are looked up in it; it would have others.
    (
        "sidecar:specdec_address_down:bool: removed: and on (cluster, namespace, job, instance,"
        " pod) pod:specdec_served"
    ),
    (
        "workload:specdec_kube_wanted:bool: removed: and on (cluster, namespace, workload)"
        " workload:specdec_served"
    ),
    # Equal: while two pods of a workload have just loaded, it is served.
    "workload:specdec_load_seconds:last: max -> min in: ",
    # Equal: an alert's text takes the first one.
    "fleet:specdec_runbooks:any: 1 -> 2.0 in: topk(1, group by (runbooks)",
    # Not scenes, which would last for a week: tests/benchmarks/test_rules_model.py, all noticed.
    "pod:specdec_acceptance:lowest_before: ",
    "pod:specdec_engine_acceptance:past: ",
    # For a minute after a gap of Prometheus, within keep_firing_for.
    "SpecDecodeSlowerThanPlain: 1 -> 2.0 in: pace, job, instance, pod) specdec_up == 1)",
    # Not a scene, since rules are missing in it: test_alerts_without_their_recording_rules_say_so.
    (
        "SpecDecodeRulesFailing: removed: or label_replace(group without (engine)"
        " (specdec_engine_drafts_total) unless"
    ),
)


@dataclass(frozen=True)
class Mutant:
    """``rule`` is the index of the rule that ``changed`` replaces."""

    rule: int
    what: str
    changed: dict


def mutants(rules):
    for index, rule in enumerate(rules):
        for what, expr in _of_expression(rule["expr"]):
            yield Mutant(index, what, rule | {"expr": expr})
        if "for" in rule:
            for factor in (0.5, 2):
                changed = f"{int(_seconds(rule['for']) * factor)}s"
                yield Mutant(index, f"{rule['for']} -> {changed}", rule | {"for": changed})
        if "keep_firing_for" in rule:
            changed = {key: value for key, value in rule.items() if key != "keep_firing_for"}
            yield Mutant(index, "keep_firing_for removed", changed)
        if "alert" in rule:
            severity = "info" if rule["labels"]["severity"] == "warning" else "warning"
            yield Mutant(
                index,
                f"severity {severity}",
                rule | {"labels": rule["labels"] | {"severity": severity}},
            )


def _of_expression(expr):
    for pattern, change in (
        (r"(?<= )(<|>=|>|==)(?= )", _FLIPPED.get),
        (r"\b(and|unless|or)\b(?= )", _SET.get),
        (r"(?<= )[/*+-](?= )|(?<=^)[/*+-](?= )", _ARITHMETIC.get),
        (r"\b(sum|avg|max|min|count)\b(?= (?:by|without))", _AGGREGATED.get),
        (_THRESHOLD, "0.9 * {}".format),
        (_THRESHOLD, "1.1 * {}".format),
        # not of a range, a label or a pattern's repetition
        (r'(?<![\w.:"|\[{,])\d+(?:\.\d+)?(?![\w."|\]])', _another_number),
        (r'(?<=[a-z_]=")[^"]+(?=")|(?<=~")[^"]+(?=")', lambda _: "another"),
        (r'!=(?=")', lambda _: "="),
    ):
        for match in re.finditer(pattern, expr, re.MULTILINE):
            if pattern == _THRESHOLD and _ASKED_FOR.search(expr[: match.start()]):
                continue  # its value makes no difference
            changed = expr[: match.start()] + change(match.group()) + expr[match.end() :]
            yield f"{match.group()} -> {change(match.group())}{_near(expr, match)}", changed
    for match in re.finditer(r"\s+(and|unless|or)\b", expr):
        end = _end_of_clause(expr, match.end())
        yield (
            f"removed: {' '.join(expr[match.start() : end].split())}",
            expr[: match.start()] + expr[end:],
        )


def _near(expr, match):
    return f" in: {' '.join(expr[max(match.start() - 40, 0) : match.end() + 40].split())}"


def _another_number(text):
    number = float(text)
    if number == 0:
        return "1e9"
    return str(number * 2 if number >= 1 else number + 0.25)


def _end_of_clause(expr, start):
    """The end of the clause that begins at ``start``.

    A set operator, a comma, or its closing parenthesis ends it.
    """
    depth = 0
    for index in range(start, len(expr)):
        depth += {"(": 1, ")": -1, "{": 1, "}": -1}.get(expr[index], 0)
        if depth < 0 or (depth == 0 and re.match(r"\s+(and|unless|or)\b|,", expr[index:])):
            return index
    return len(expr)


def _seconds(duration):
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def survives(rules, mutant, related):
    """Whether no scene related to the rule notices the change.

    ``related`` has the scenes by the index of a rule. The one that notices is then the first: the
    next change of this rule mostly shows in it, too.
    """
    changed = [mutant.changed if index == mutant.rule else rule for index, rule in enumerate(rules)]
    scenes = related[mutant.rule]
    for scene in scenes:
        with tempfile.TemporaryDirectory() as directory:
            if promtool(Path(directory), scene, concerned(changed, scene)) is not None:
                others = [other for other in scenes if other is not scene]
                related[mutant.rule] = [scene, *others]
                return False
    return True


def related_scenes(rules, touched):
    """By the index of each touched rule, the scenes that depend on it, the quickest first."""
    by_work = sorted(all_scenes(), key=lambda scene: scene.end * len(scene.pods))
    depends = [(scene, {rule["expr"] for rule in concerned(rules, scene)}) for scene in by_work]
    return {
        index: [scene for scene, exprs in depends if rules[index]["expr"] in exprs]
        for index in touched
    }


def check(names=(), jobs=2, every=1):
    """How many changes were made, and what survived.

    It makes one change in ``every``, of those of the named rules (none: of all).

    Which ones goes by their own text, so that a change of one rule does not exchange those of all
    the others.
    """
    rules = shipped()
    made = [mutant for mutant in mutants(rules) if not names or _name(rules[mutant.rule]) in names]
    # A known survivor would take the time of all scenes.
    made = [mutant for mutant in made if not _shown(rules, mutant).startswith(_UNNOTICED)]
    made = [mutant for mutant in made if crc32(_shown(rules, mutant).encode()) % every == 0]
    with tempfile.TemporaryDirectory() as directory:
        # What can't be loaded proves nothing.
        assert_valid(Path(directory), [mutant.changed for mutant in made])

    related = related_scenes(rules, {mutant.rule for mutant in made})
    # A scene that fails anyway would seem to notice everything.
    for scene in all_scenes() if names else ():
        if any(scene in scenes for scenes in related.values()):
            with tempfile.TemporaryDirectory() as directory:
                failure = promtool(Path(directory), scene, concerned(rules, scene))
            assert failure is None, (
                f"scene {scene.name!r} fails without a change; run pytest tests/alerts\n{failure}"
            )

    with ThreadPoolExecutor(jobs) as pool:
        survived = list(pool.map(lambda mutant: survives(rules, mutant, related), made))
    return len(made), [
        _shown(rules, mutant) for mutant, unnoticed in zip(made, survived, strict=True) if unnoticed
    ]


def _shown(rules, mutant):
    return f"{_name(rules[mutant.rule])}: {mutant.what}"


def _name(rule):
    return rule.get("alert") or rule["record"]


if __name__ == "__main__":
    made, alive = check(sys.argv[1:])
    outcome = f"{len(alive)} unnoticed:" if alive else "all noticed"
    print(f"{made} changes, {outcome}", *alive, sep="\n")  # noqa: T201 - a script prints
    sys.exit(bool(alive))
