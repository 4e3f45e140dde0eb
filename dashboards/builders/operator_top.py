"""The operator's first screen: whether speculation pays, where not, since when, and how reliable that is."""

from typing import Final

from grafana_foundation_sdk.builders import stat, statetimeline, table, timeseries

from dashboards.builders.expressions import (
    ACCEPTANCE_BY_BUCKET,
    ACCEPTANCE_BY_MODEL,
    FIRING,
    FIRING_SINCE,
    LOSING_BUCKETS,
    PAYS,
    verdict_code,
)
from dashboards.builders.layout import Column, Line, Section, beside
from dashboards.builders.panels import (
    AGO,
    SECONDS,
    SHARE,
    Mapping,
    Query,
    figure,
    names,
    over_time,
    states,
)
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import BUCKET, at_least, least, reached, series, threshold, worst
from dashboards.builders.tables import ALERT_RUNBOOK, Label, Value, rows

VERDICTS: Final[Mapping] = {
    0: ("too little data", "#6e7079"),
    1: ("pays", "green"),
    2: ("breaks even", "yellow"),
    3: ("does not pay", "red"),
}
_PAYS: Final[Mapping] = {0: ("NO", "red"), 1: ("breaks even", "yellow"), 2: ("YES", "green")}
_LOSING: Final[Mapping] = {0: ("nowhere", "green"), 1: ("does not pay", "red")}
_ANSWERS: Final[Mapping] = {0: ("sidecar down", "red"), 1: ("vLLM down", "red"), 2: ("both up", "green")}
_COMPLETE: Final[Mapping] = {0: ("incomplete", "orange"), 1: ("complete", "green")}
STATES: Final[Mapping] = {1: ("firing", "red")}

# A sidecar that is gone has no specdec_up; then the factor before it is 0 already.
_BOTH_UP: Final = f"min({reached()}) * (1 + (min({series('up')}) or on () vector(0)))"


def top() -> Section:
    """What a person who was paged sees without scrolling."""
    answers = Column(6, ((_pays(), 3), (_where(), 3), (_trust(), 3)))
    first: Line = [
        answers,
        Column(10, ((_since(), 9),)),
        Column(8, ((firing("temperature", "cluster", "namespace", "pod", "instance"), 9),)),
    ]
    return Section("", [first, beside(11, (acceptance_by_temperature(), 13), (_gap(), 11)), _health()])


def alerting() -> Section:
    """What fired when."""
    return Section("Alerts", [beside(8, (_history(), 24))])


def _pays() -> stat.Panel:
    return figure(
        "Does speculation pay?",
        "The worst verdict of the selected sidecars: by time if there is a reference without speculation, otherwise by "
        "acceptance rate. NO: drafting costs more time than it saves.",
        "On NO, look to the right for the temperature where it does not pay. If it pays at none, start vLLM without "
        "--speculative-config. If it fails to pay only at high ones, route those requests to pods that do not "
        "speculate.",
        Query(PAYS),
        values=_PAYS,
        empty="not enough drafts",
    )


def _where() -> stat.Panel:
    return names(
        "Where it does not pay",
        "The temperatures whose verdict is net_negative now, on any selected pod. 'nowhere': no temperature's is.",
        "Check that temperature's share of the traffic below. A small share matters little; a large one is why P99 "
        "suffers while the average looks healthy.",
        Query(LOSING_BUCKETS, "{{temperature}} {{model_name}}"),
        values=_LOSING,
        empty="no verdicts",
    )


def _trust() -> stat.Panel:
    return figure(
        "Is this page live?",
        "Whether Prometheus reaches every selected sidecar, and each sidecar reaches its vLLM.",
        "Sidecar down: check the pod and Prometheus' targets. vLLM down: check the vLLM container before anything else "
        "on this dashboard.",
        Query(_BOTH_UP),
        values=_ANSWERS,
        empty="nothing found",
    )


def _since() -> statetimeline.Panel:
    return states(
        "Verdict by temperature: where, and since when",
        "One band per temperature; red begins where speculation stopped paying. Grey: too few requests. With several "
        "pods, the worst verdict is shown.",
        "Find where the colour changed and check what happened then: the marks are alerts and restarts. The usual "
        "causes are a deployment, another draft model, quantization or new traffic.",
        Query(verdict_code(BUCKET), "{{temperature}} {{model_name}}"),
        values=VERDICTS,
        empty="no split by temperature: see the plug-in below",
    )


def firing(*labels: str) -> table.Panel:
    """The table of firing alerts, distinguished by name, severity and ``labels``."""
    expr = worst(", ".join(("alertname", "severity", *labels)), FIRING_SINCE)
    return rows(
        "Alerts firing",
        (
            "Alerts that fire now, and since when their condition holds, oldest last. Empty is good if all is live.",
            "Click the name for its runbook. Start with alerts that say down or absent: they explain the rest.",
        ),
        [Label("alertname", ALERT_RUNBOOK), Label("severity"), *map(Label, labels)],
        [Value(expr, "Since", AGO)],
        sort="Since",
        empty="no alert fires",
    )


def acceptance_by_temperature() -> timeseries.Panel:
    """Acceptance of each temperature and of all, with the two thresholds of the verdict."""
    return over_time(
        "Acceptance by temperature, against the thresholds",
        "Accepted / draft tokens. The thick line is vLLM's own counters over all requests. Below the red dashes "
        "speculation costs more than it saves, above the orange ones it pays.",
        "A thick line above red with a temperature below red is a mixed workload: judge by the temperature, not by the "
        "average. If every line fell at the same time, the draft model, quantization or prompts changed.",
        [
            Query(ACCEPTANCE_BY_BUCKET, "{{temperature}} {{model_name}}"),
            Query(ACCEPTANCE_BY_MODEL, "all {{model_name}}", Style.WHOLE),
            Query(threshold("acceptance_net_negative"), "does not pay below", Style.LIMIT),
            Query(threshold("acceptance_break_even"), "pays above", Style.NOTICE),
        ],
        SHARE,
        high=1,
    )


def _gap() -> timeseries.Panel:
    quantiles = [series("latency_baseline_seconds", f'quantile="{quantile}"') for quantile in ("0.99", "0.5")]
    baseline = worst("model_name, phase", f"{quantiles[0]} - ignoring (quantile) {quantiles[1]}")
    return over_time(
        "Gap between P99 and P50, by phase",
        "P99 - P50 in vLLM's own histograms over the sliding window, on the worst pod. Dashed: the configured "
        "baseline's gap times the threshold, if there is a baseline.",
        "If the gap widens while P50 falls or stays, speculation helps most requests and hurts some: find the "
        "temperature where it does not pay. If P50 rises too, the cause is load: check the KV cache and the queue.",
        [
            Query(worst("model_name, phase", series("engine_latency_gap_seconds")), "{{phase}} {{model_name}}"),
            Query(
                f"{baseline} * on () group_left () {threshold('latency_gap_growth')}",
                "limit {{phase}} {{model_name}}",
                Style.LIMIT,
            ),
        ],
        SECONDS,
    )


def _health() -> Line:
    coverage = figure(
        "Is the split by temperature complete?",
        "Whether the plug-in reports as many draft tokens as vLLM counts.",
        "Incomplete: the sidecar does not export the split. The plug-in panel below and the sidecar's status page say "
        "why.",
        Query(f"min({at_least(series('request_coverage_ratio'), 'coverage')})"),
        values=_COMPLETE,
        empty="no plug-in, or idle",
    )
    now = figure(
        "Acceptance now",
        "Accepted / draft tokens of the worst selected model over the last 5 minutes, from vLLM's counters.",
        "Compare with the thresholds in the panel above.",
        Query(least("", ACCEPTANCE_BY_MODEL)),
        unit=SHARE,
        empty="no drafts",
    )
    peak = figure(
        "KV cache, peak",
        "The highest share of the KV cache in use during the last minute, on the worst selected pod.",
        "Near the threshold vLLM preempts and queues requests, which widens every gap: first scale out or lower "
        "--max-num-seqs.",
        Query(worst("", series("kv_cache_usage_peak_ratio"))),
        unit=SHARE,
    )
    waiting = figure(
        "Requests waiting",
        "Requests in vLLM's queue, summed over the selected pods.",
        "A lasting queue means overload, which speculation does not cause; under heavy load speculation often stops "
        "paying.",
        Query(f"sum({series('requests_waiting')})"),
    )
    return beside(3, (coverage, 6), (now, 6), (peak, 6), (waiting, 6))


def _history() -> statetimeline.Panel:
    return states(
        "Alerts firing over time",
        "One band per alert, for as long as it fired.",
        "The alert that fired first is closest to the cause.",
        Query(
            worst("alertname, severity, temperature, namespace, pod, instance", FIRING),
            "{{alertname}} {{severity}} {{temperature}} {{namespace}} {{pod}} {{instance}}",
        ),
        values=STATES,
        empty="no alert fired",
    )
