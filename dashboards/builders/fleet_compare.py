"""Models and pods over time against what pays, and pods with speculation beside pods without it.

The pods that are set side by side are of the same model.
"""

from typing import Final

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.builders.fleet_state import BREAK_EVEN, MEASURED, RULED
from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import SECONDS, SHARE, TIMES, TOKENS_PER_SECOND, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import MODEL, POD, first, lately, recorded, series, threshold, total
from dashboards.builders.tables import Label, Value, operator_link, rows

_MODEL: Final = "{{model_name}} {{namespace}} {{cluster}}"
_LINES: Final = 10
# The sidecars' own rates, over the window that they judge.
_MARGIN: Final = f"{lately(series('model_acceptance_ratio'))} - on ({POD}) {BREAK_EVEN}"
_SPREAD: Final = ((0, "lowest"), (0.1, "P10"), (0.5, "P50"))
_DO: Final = (
    "Below 0 drafting costs more time than it saves. If every line fell at the same time, look for"
    " a rollout."
)


def over_the_fleet() -> Section:
    """Acceptance against what pays, and the speedup."""
    return Section(
        "Since when, and by how much?",
        [beside(9, (_by_model(), 8), (_by_pod(), 8), (_gained(), 8))],
        collapsed=True,
    )


def _by_model() -> timeseries.Panel:
    def margin(line: str) -> str:
        return (
            f"bottomk({_LINES}, {recorded('engine_acceptance:ratio')} - avg by ({MODEL}) ({line}))"
        )

    return over_time(
        "Acceptance above break-even, by model",
        "Accepted / draft tokens of a model, minus the rate at which drafting pays for itself; the"
        f" {_LINES} lowest. Measured: from the time per token without speculation. By rule of"
        " thumb: the threshold, where that judges.",
        _DO,
        [
            Query(margin(MEASURED), f"{_MODEL}, mean of its pods, measured"),
            Query(margin(RULED), f"{_MODEL}, mean of its pods, by rule of thumb"),
            Query("vector(0)", "pays above", Style.LIMIT),
        ],
        SHARE,
        low=None,
        empty="no verdict within the range, or no recording rules",
    )


def _by_pod() -> timeseries.Panel:
    return over_time(
        "Acceptance above break-even, across pods",
        "How the pods' acceptance rates, each minus the pod's own break-even, are distributed.",
        "If the lowest is far below P10, one pod is bad: it is on top of the table of pods. If P10"
        " is far below P50, some pods get other temperatures: speculate only where it pays.",
        [
            *(Query(f"quantile({share:g}, {_MARGIN})", name) for share, name in _SPREAD),
            Query("vector(0)", "pays above", Style.LIMIT),
        ],
        SHARE,
        low=None,
    )


def _gained() -> timeseries.Panel:
    speedup = recorded("speedup:ratio")

    return over_time(
        "Speedup by model, before and after a change",
        "Time per token without speculation divided by the actual one, of a model's speculating"
        f" pods together; the {_LINES} lowest. Orange marks are changes of the configuration or of"
        " vLLM's version.",
        "If it falls at a mark, undo that change. An option that docs/why.md names should"
        " raise it.",
        [
            Query(first(_LINES, speedup, lowest=True), _MODEL),
            Query(
                f"{threshold('speedup_net_negative')} and on () {speedup}",
                "does not pay below",
                Style.LIMIT,
            ),
        ],
        TIMES,
        low=None,
        empty="no baseline and no pod without speculation, or no recording rules",
    )


def against() -> Section:
    """Pods that speculate beside pods of the same model that do not, at the load that both have."""
    return Section(
        "With and without speculation", [beside(9, (_slowdown(), 9), (_both(), 15))], collapsed=True
    )


def _slowdown() -> timeseries.Panel:
    def slowdown(quantile: str) -> str:
        return recorded("tpot:slowdown", "model_quantile", f'quantile="{quantile}"')

    return over_time(
        "TPOT with speculation ÷ without, by model",
        "The mean over the pods that speculate divided by that over the pods that do not, at P50"
        f" and at P99; the {_LINES} highest. A pod that drafts little, or that drafted within the"
        " last day, is in neither group.",
        "Above 1 speculation costs time. If only P99 is, the workload is mixed: sample the drafts,"
        " or speculate fewer tokens. First check that both groups have the same load and hardware.",
        [
            Query(first(_LINES, slowdown("0.5")), f"{_MODEL} P50"),
            Query(first(_LINES, slowdown("0.99")), f"{_MODEL} P99"),
            Query(
                f"{threshold('slowdown')} and on () {slowdown('0.99')}", "alert above", Style.LIMIT
            ),
        ],
        TIMES,
        empty="no model has enough load in both groups, or no recording rules",
    )


def _both() -> table.Panel:
    def grouped(function: str, expr: str, speculates: int) -> str:
        return (
            f"{function} by ({MODEL}) ({expr} and on ({POD}) {recorded('speculates:bool', 'pod')}"
            f" == {speculates})"
        )

    def token(quantile: str, speculates: str) -> str:
        matchers = (f'quantile="{quantile}"', f'speculates="{speculates}"')
        return f"sum by ({MODEL}) ({recorded('tpot_seconds:avg', 'model_quantile', *matchers)})"

    known, tokens = recorded("speculates:bool", "pod"), total(POD, "generation_tokens_total")
    return rows(
        "Pods with and without speculation, by model",
        (
            (
                "The mean over the pods of each group. A starting pod, one that drafts little, and"
                " one that drafted within the last day are in neither."
            ),
            (
                "Keep one pod of each model without speculation: it is the cheapest way to measure"
                " what speculation gains."
            ),
        ),
        [
            Label("model_name", operator_link("cluster", "namespace", "model_name")),
            Label("namespace", width=120),
            Label("cluster", hidden=True),
        ],
        [
            Value(grouped("count", known, 1), "Pods with", width=85),
            Value(grouped("count", known, 0), "without", width=85),
            Value(token("0.5", "yes"), "P50 with", SECONDS, width=90),
            Value(token("0.5", "no"), "P50 without", SECONDS, width=100),
            Value(token("0.99", "yes"), "P99 with", SECONDS, width=90),
            Value(token("0.99", "no"), "P99 without", SECONDS, width=100),
            Value(grouped("avg", tokens, 1), "Tokens with", TOKENS_PER_SECOND, width=100),
            Value(grouped("avg", tokens, 0), "Tokens without", TOKENS_PER_SECOND, width=120),
        ],
        sort="P99 with",
        empty="needs the recording rules",
    )
