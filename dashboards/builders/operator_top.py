"""The operator's first screen: whether speculation pays.

It also says where it does not, since when, why, and what to do.
"""

from typing import Final

from grafana_foundation_sdk.builders import statetimeline, table, timeseries

from dashboards.builders.expressions import (
    BREAK_EVEN,
    BREAK_EVEN_HIGHEST,
    FIRING,
    FIRING_SINCE,
    by_rule_of_thumb,
    verdict_rank,
)
from dashboards.builders.layout import Section, beside
from dashboards.builders.operator_answers import (
    LOWEST_SPEEDUP,
    PLAIN,
    answers,
    with_missing,
)
from dashboards.builders.operator_why import why
from dashboards.builders.panels import (
    AGO,
    COUNT,
    SECONDS,
    SHARE,
    TEMPERATURE,
    TIMES,
    Mapping,
    Query,
    over_time,
    states,
)
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import (
    POD,
    labelled,
    lately,
    least,
    recorded,
    relabelled,
    series,
    threshold,
    who,
    worst,
)
from dashboards.builders.tables import ALERT_RUNBOOK, Label, Value, rows
from dashboards.builders.verdicts import VERDICTS

_SEVERITIES: Final[Mapping] = {
    3: ("critical", "red"),
    2: ("warning", "orange"),
    1: ("info", "blue"),
}
# The code of each severity.
_SEVERITY_CODES: Final = " or ".join(
    labelled(f"vector({code})", "severity", name) for code, (name, _) in _SEVERITIES.items()
)
LIMITS: Final = (
    Query(BREAK_EVEN, "breaks even at, as measured", Style.NOTICE),
    Query(BREAK_EVEN_HIGHEST, "breaks even at, highest of the pods", Style.LIMIT),
    Query(
        by_rule_of_thumb("acceptance_net_negative"),
        "does not pay below, by rule of thumb",
        Style.LIMIT,
    ),
    Query(by_rule_of_thumb("acceptance_break_even"), "pays above, by rule of thumb", Style.NOTICE),
)


def top() -> Section:
    """What a person who was paged sees without scrolling: eight panels in 20 rows."""
    return Section(
        "",
        [
            answers(),
            beside(4, (why(), 24)),
            beside(6, (_since(), 11), (firing(), 13)),
            beside(6, (_speedup(), 24)),
        ],
    )


def alerting() -> Section:
    """What fired when."""
    fired = worst("alert, severity, at", _subject(FIRING))
    history = states(
        "Alerts firing over time",
        "One band per alert, for as long as it fired for any selected pod, in the colour of its"
        " severity.",
        "The alert that fired first is closest to the cause.",
        Query(f"0 * {fired} + on (severity) group_left () ({_SEVERITY_CODES})", "{{alert}} {{at}}"),
        values=_SEVERITIES,
        empty="no alert fired",
    )

    return Section("Which alerts fired, and when?", [beside(8, (history, 24))], collapsed=True)


def _since() -> statetimeline.Panel:
    return states(
        "Verdict: where, and since when",
        "All requests, and each temperature; red begins where speculation stopped paying. High,"
        " medium and low: the acceptance rate by the rule of thumb, where no baseline is measured."
        " With several pods, the worst is shown: select a model to see its own. Purple: of a pod"
        " known within the last hour nothing is known.",
        "Find where the colour changed and check what happened then: the marks are alerts, restarts"
        " and changes of the configuration. The usual causes are a deployment, another draft model,"
        " quantization or new traffic.",
        Query(
            verdict_rank("", "model_verdict", plain=worst("", PLAIN), over_time=True),
            "all",
        ),
        Query(verdict_rank("temperature", over_time=True), TEMPERATURE),
        values=VERDICTS,
        empty="no verdict: nothing is drafted",
    )


def _subject(alerts: str) -> str:
    """With the labels ``alert`` and ``at``.

    ``alert`` is the name without our prefix; ``at`` is the temperature, the engine or the sign.
    """
    named = relabelled(alerts, "alert", "$1", "alertname", "SpecDecode(.+)")
    signed = relabelled(relabelled(named, "at", "$1", "sign"), "at", "engine $1", "engine")
    return relabelled(signed, "at", "T $1", "temperature")


def firing(*labels: str) -> table.Panel:
    """The table of firing alerts.

    It has one row for each name, severity, temperature or engine, and ``labels``.
    """
    by = ", ".join(("alert, severity, at", *labels))
    since = worst(f"{by}, who", who(_subject(FIRING_SINCE)))
    oldest = f"bottomk by ({by}) (1, {since})"
    count = f"count by ({by}) ({since})"

    return rows(
        "Alerts firing",
        (
            (
                "Alerts that fire now, critical ones first: since when their condition holds, at"
                " which temperature or engine, and on which pod; of several pods, on that where it"
                " fired first. Empty is good if all is live."
            ),
            (
                "Click the name for its runbook. If that leads to localhost, first forward a"
                " sidecar's port: kubectl port-forward POD 9911. Alerts that another one explains"
                " are left out, as Alertmanager does."
            ),
        ),
        [
            Label("alert", ALERT_RUNBOOK, title="Alert", width=226),
            Label("at", title="At", width=80),
            Label("who", title="Pod", width=155),
            Label("severity", hidden=True),  # the first column shows it in colour
            *(Label(name, width=140) for name in labels),
        ],
        [
            Value(
                f"0 * {oldest} + on (severity) group_left () ({_SEVERITY_CODES})",
                "Severity",
                COUNT,
                _SEVERITIES,
                80,
            ),
            Value(oldest, "Since", AGO, width=122),
            Value(f"0 * {oldest} + on ({by}) group_left () {count}", "Pods", COUNT, width=50),
        ],
        order=("Severity", "Alert", "Since", "At", "Pod"),
        sort="Severity",
        empty="no alert fires",
    )


def _speedup() -> timeseries.Panel:
    own, fleet = series("engine_speedup_ratio"), recorded("speedup:fleet", "pod")
    known = f"(group({own}) or group({fleet}))"
    # A speedup is known for as long as its window, also where nothing is drafted any more.
    drafted = (
        f"{lately(series('speedup_ratio'))} and on ({POD}, temperature)"
        f" {lately(series('acceptance_ratio'))}"
    )

    return over_time(
        "Speedup by temperature, worst pod",
        "Time per token without speculation divided by the actual one, at the same load: at 1 both"
        " are equal. The thick line is all requests of the worst pod that is known; its name says"
        " how many pods are missing now.",
        "Below the red dashes speculation costs time: the finding says why. Without a reference,"
        " measure a baseline.",
        [
            Query(least("temperature", drafted), TEMPERATURE),
            Query(with_missing(LOWEST_SPEEDUP), "all{{missing}}", Style.ALL),
            Query(
                f"{threshold('speedup_net_negative')} and {known}",
                "does not pay below",
                Style.LIMIT,
            ),
            Query(f"{threshold('speedup_net_positive')} and {known}", "pays above", Style.NOTICE),
        ],
        TIMES,
        low=None,
        compact=True,
        empty="no reference: measure a baseline (specdec-sidecar baseline --load)",
    )


def acceptance_by_temperature() -> timeseries.Panel:
    """Each temperature's rate beside the rate that pays."""
    return over_time(
        "Acceptance by temperature, worst pod",
        "Accepted / draft tokens over the judged window, of the pod where that is lowest; the thick"
        " line is all requests, and its name says how many pods are missing now. The dashes are the"
        " measured break-even where there is one (the lowest of the pods, and the highest if they"
        " differ), else the rule of thumb, while it judges.",
        "A thick line above the dashes with a temperature below is a mixed workload: judge by the"
        " temperature. If every line fell at the same time, the draft model, quantization or"
        " prompts changed.",
        [
            Query(least("temperature", lately(series("acceptance_ratio"))), TEMPERATURE),
            Query(
                with_missing(least("", lately(series("model_acceptance_ratio")))),
                "all{{missing}}",
                Style.ALL,
            ),
            *LIMITS,
        ],
        SHARE,
        high=1,
        compact=True,
    )


def between_tokens() -> timeseries.Panel:
    """The median and the slowest."""
    return over_time(
        "Time between tokens: P50 and P99, worst pod",
        "vLLM's own time per output token (tpot) and inter-token latency (itl), which has one"
        " observation per step, over the sliding window; without the plug-in in vLLM's wide"
        " buckets. Dashed: the configured baseline.",
        "If P50 is better and P99 worse than before, speculation helps most requests and hurts"
        " some: find the temperature. If both are worse, it costs more than it saves, or the load"
        " is higher.",
        [
            Query(
                _latency("engine_latency_seconds", phase, quantile), f"{name} {phase}", color=color
            )
            for phase, name, quantile, color in (
                ("tpot", "P50", "0.5", "#8ab8ff"),
                ("tpot", "P99", "0.99", "#5794f2"),
                ("itl", "P50", "0.5", "#e685d3"),
                ("itl", "P99", "0.99", "#b877d9"),
            )
        ]
        + [
            Query(
                _latency("latency_baseline_seconds", "tpot", quantile),
                f"{name} tpot, baseline",
                Style.NOTICE,
            )
            for name, quantile in (("P50", "0.5"), ("P99", "0.99"))
        ],
        SECONDS,
        compact=True,
    )


def _latency(metric: str, phase: str, quantile: str) -> str:
    return worst("", series(metric, f'phase="{phase}"', f'quantile="{quantile}"'))
