"""The operator's findings: why speculation loses on the selected pods, and what to change."""

from grafana_foundation_sdk.builders import table

from dashboards.builders.findings import HELD, columns, explained
from dashboards.builders.operator_answers import WORST
from dashboards.builders.panels import COUNT
from dashboards.builders.query import worst
from dashboards.builders.tables import Value, rows


def why() -> table.Panel:
    """One row for each finding, those of the worst pod first."""
    return rows(
        "Why, and what to change",
        (
            (
                "Every finding of the selected pods: what the sidecar sees, the option or step that"
                " may help, whether the worst pod has it, and how many pods do. Empty: nothing is"
                " found, or no pod answers."
            ),
            (
                "Try the change on one pod. A finding leads to a runbook; the status page and"
                " docs/why.md have its numbers, what to expect, and the command that verifies it."
            ),
        ),
        columns(),
        [
            Value(explained(f"count by (finding) ({HELD})"), "Pods with it", width=110),
            Value(
                explained(worst("finding", f"{HELD} and {WORST}")),
                "Worst pod",
                COUNT,
                {1: ("has it", "orange")},
                110,
            ),
        ],
        order=("Finding", "What to change", "Worst pod", "Pods with it"),
        sort="Worst pod",
        then="Pods with it",
        empty="no finding on the pods that answer",
    )
