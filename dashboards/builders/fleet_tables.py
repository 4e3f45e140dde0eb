"""The fleet's tables: temperatures, models, pods.

Each row links to the operator's dashboard for its subject.
"""

from typing import Final

from grafana_foundation_sdk.builders import table

from dashboards.builders.expressions import (
    ACCEPTANCE_BY_POD,
    has_verdict,
    verdict_rank,
)
from dashboards.builders.findings import columns, explained
from dashboards.builders.fleet_state import (
    BREAK_EVEN,
    LOSING,
    MODEL_STATES,
    PODS,
    SPEEDUP,
    STATE,
    STATES,
    UP,
    WORST_POD,
    model_state,
    of_worst,
)
from dashboards.builders.panels import COUNT, SECONDS, SHARE, TIMES
from dashboards.builders.query import MODEL, POD, lately, least, series, total, who, worst
from dashboards.builders.tables import Label, Value, operator_link, rows
from dashboards.builders.verdicts import VERDICTS, Rank

_BUCKET: Final = f"{MODEL}, temperature"
_VERDICT: Final = 150  # pixels: as wide as its words
_NARROW: Final = 100
_FINDING: Final = least(f"{POD}, finding", lately(series("finding_rank")))  # 1: to change first
_P99: Final = series("engine_latency_seconds", 'phase="tpot"', 'quantile="0.99"')


def _model_labels(link: str, *, more: tuple[str, ...] = ()) -> list[Label]:
    widths = {"temperature": _NARROW, "namespace": 130, "cluster": _NARROW}
    names = (*more, "model_name", "namespace", "cluster")
    return [
        Label(
            name, link if name in ("temperature", "model_name") else "", width=widths.get(name, 0)
        )
        for name in names
    ]


def _up(expression: str) -> str:
    """Of the pods that answer: one that is down has no acceptance rate now."""
    return f"{expression} and on ({POD}) {UP}"


def _at_worst(metric: str) -> str:
    """A value of each temperature, of the pods with the worst verdict at it."""
    return of_worst(_BUCKET, lately(series(metric)), "verdict", f"{POD}, temperature")


def _of_worst(value: str) -> str:
    """A value of each model, of its worst pod."""
    return f"sum by ({MODEL}) ({value} and on ({POD}) {WORST_POD})"


def worst_temperatures() -> table.Panel:
    """One row per temperature of each model."""
    judged = lately(series("verdict", 'verdict!="insufficient_data"'))
    whole_model = total(MODEL, "engine_draft_tokens_total")

    return rows(
        "Temperatures, worst first",
        (
            (
                "Every temperature of each model: its verdict on the worst pod, the lowest"
                " acceptance and speedup of the pods with that verdict, on how many pods it loses,"
                " by time or by the rule of thumb, and its share of the model's draft tokens."
            ),
            (
                "Click a temperature for its dashboard. If it loses on many pods, sample its"
                " drafts, or speculate fewer tokens. If it loses on one, look at that pod below. A"
                " small share matters little."
            ),
        ),
        _model_labels(
            operator_link("cluster", "namespace", "model_name", "temperature"),
            more=("temperature",),
        ),
        [
            Value(verdict_rank(_BUCKET), "Verdict", COUNT, VERDICTS, 190),
            Value(
                f"sum by ({_BUCKET}) ({has_verdict('verdict', 'net_negative')})",
                "Pods low",
                width=_NARROW,
            ),
            Value(f"sum by ({_BUCKET}) ({judged})", "Pods judged", width=_NARROW),
            Value(_at_worst("acceptance_ratio"), "Acceptance", SHARE, width=_NARROW),
            Value(_at_worst("speedup_ratio"), "Speedup", TIMES, width=_NARROW),
            Value(
                f"{total(_BUCKET, 'draft_tokens_total')} / on ({MODEL}) group_left ()"
                f" ({whole_model} > 0)",
                "Share of draft tokens",
                SHARE,
            ),
        ],
        order=("Verdict", "temperature", "model_name", "namespace", "cluster"),
        sort="Verdict",
        then="Share of draft tokens",
        empty="no split by temperature: no plug-in is connected",
    )


def models() -> table.Panel:
    """One row per model and namespace."""
    up = f"(count by ({MODEL}) ({UP}) or 0 * count by ({MODEL}) ({PODS}))"

    return rows(
        "Models, worst first",
        (
            (
                "Worst: 'does not pay' if at least half of the model's pods lose, else the verdict"
                " on its worst pod. Pods: also those that are missing; down: of these, without"
                " answer or gone; losing: as measured. Speedup, acceptance and break-even (the rate"
                " that pays for drafting) are those of one pod: of the pods with the worst verdict"
                " over all their requests the slowest. P99 (of TPOT) and KV peak are the highest."
            ),
            (
                "Click a model for its dashboard. 'loses in part': fewer than half of its pods"
                " lose, or only a temperature or an engine does."
            ),
        ),
        _model_labels(operator_link("cluster", "namespace", "model_name")),
        [
            # Pods of which not even the model is known have never answered.
            Value(
                f"{model_state()} or 0 * count by ({MODEL}) ({PODS}) + {Rank.VLLM_DOWN}",
                "Worst",
                COUNT,
                MODEL_STATES,
                190,
            ),
            Value(f"count by ({MODEL}) ({PODS})", "Pods", width=70),
            Value(f"count by ({MODEL}) ({PODS}) - {up}", "Down", width=70),
            Value(f"sum by ({MODEL}) ({LOSING})", "Losing", width=80),
            Value(_of_worst(SPEEDUP), "Speedup", TIMES, width=_NARROW),
            Value(_of_worst(ACCEPTANCE_BY_POD), "Acceptance", SHARE, width=_NARROW),
            Value(_of_worst(BREAK_EVEN), "Break-even", SHARE, width=_NARROW),
            Value(worst(MODEL, _P99), "Highest P99", SECONDS, width=115),
            Value(worst(MODEL, series("kv_cache_usage_peak_ratio")), "KV peak", SHARE, width=90),
        ],
        order=("Worst", "model_name", "namespace", "cluster"),
        sort="Worst",
        then="Losing",
        empty="no model: scaled to zero, or check the selection and Prometheus' targets",
    )


def pods() -> table.Panel:
    """One row per pod and model."""
    link = operator_link("cluster", "namespace", "job", "instance", "pod", "model_name")
    hidden = [Label(name, hidden=True) for name in ("cluster", "job", "instance", "pod")]

    return rows(
        "Pods, worst first",
        (
            (
                "Every pod of the last hour, also where the sidecar or vLLM is down. Finding: one"
                " reason why speculation loses or could gain more, and what to change. Break-even:"
                " the acceptance rate that pays for drafting. Gap: P99 - P50 of the time per output"
                " token."
            ),
            (
                "Click a pod for its dashboard, which has all its findings, and a finding for a"
                " runbook with its steps."
            ),
        ),
        [
            Label("who", link, "Pod", width=165),
            Label("namespace", width=110),
            Label("model_name"),
            *columns(together=True),
            *hidden,
        ],
        [
            Value(who(STATE), "State", COUNT, STATES, _VERDICT),
            Value(explained(f"bottomk by ({POD}) (1, {_FINDING})")),
            Value(_up(ACCEPTANCE_BY_POD), "Acceptance", SHARE, width=_NARROW),
            Value(_up(worst(POD, BREAK_EVEN)), "Break-even", SHARE, width=_NARROW),
            Value(_up(SPEEDUP), "Speedup", TIMES, width=90),
            Value(worst(POD, _P99), "TPOT P99", SECONDS, width=115),
            Value(
                worst(POD, series("engine_latency_gap_seconds", 'phase="tpot"')),
                "Gap",
                SECONDS,
                width=90,
            ),
            Value(worst(POD, series("kv_cache_usage_peak_ratio")), "KV peak", SHARE, width=90),
            Value(f"sum by ({POD}) ({series('requests_waiting')})", "Waiting", width=80),
        ],
        # What 1,400 pixels show is up to the finding.
        order=(
            *("State", "Pod", "namespace", "model_name", "Speedup", "Acceptance"),
            *("Finding: what to change", "Break-even", "TPOT P99", "Gap", "KV peak", "Waiting"),
        ),
        sort="State",
        then="TPOT P99",
        empty="no pod: scaled to zero, or check Prometheus' targets",
    )
