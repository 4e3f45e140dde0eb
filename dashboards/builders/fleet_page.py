"""*Speculative decoding: fleet*: models, pods, worst temperatures, and pods with and without speculation."""

from typing import Final

from grafana_foundation_sdk.builders import statetimeline, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.builders.expressions import (
    ACCEPTANCE_BY_NAMESPACE,
    ACCEPTANCE_BY_POD,
    DRAFTS_BY_POD,
    FIRING,
    LOSING_PODS,
    verdict_code,
)
from dashboards.builders.fleet_compare import against
from dashboards.builders.fleet_tables import models, pods, worst_buckets
from dashboards.builders.layout import Line, Section, beside, place
from dashboards.builders.operator_top import VERDICTS, firing
from dashboards.builders.page import FLEET, new_page
from dashboards.builders.panels import COUNT, PER_SECOND, SHARE, Mapping, Query, figure, over_time, states
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import MODEL, at_least, least, reached, recorded, series, threshold, total

_NONE: Final[Mapping] = {0: ("none", "green")}
_SPREAD: Final = (0, 0.1, 0.5, 0.9)


def fleet_page() -> Dashboard:
    """The first screen answers which models and which pods lose; the rest compares."""
    page = new_page(
        FLEET,
        "Speculative decoding: fleet",
        "At which models, pods and temperatures speculative decoding does not pay, and how pods without it compare.",
        since="now-24h",
    )
    top = Section(
        "",
        [
            _counts(),
            beside(9, (_verdicts(), 15), (firing("model_name", "cluster", "namespace"), 9)),
            beside(9, (models(), 24)),
        ],
    )
    where = Section(
        "Where",
        [
            beside(10, (worst_buckets(), 24)),
            beside(9, (_by_model(), 8), (_by_pod(), 8), (_gained(), 8)),
            beside(12, (pods(), 24)),
        ],
    )
    place(page, [top, where, against(), _trust()])
    return page


def _counts() -> Line:
    figures = (
        figure(
            "Pods known",
            "Sidecars in the selection that Prometheus knows.",
            "If there are fewer than you run, check Prometheus' targets.",
            Query(f"count({reached()})"),
        ),
        figure(
            "Sidecars down",
            "Sidecars that Prometheus cannot reach.",
            "Check those pods first: there is no data about them.",
            Query(f"sum(1 - {reached()})"),
            values=_NONE,
            otherwise="red",
        ),
        figure(
            "vLLMs down",
            "vLLM servers that their sidecar cannot reach.",
            "Sort the table of pods by 'vLLM' and check their containers.",
            Query(f"sum(1 - {series('up')})"),
            values=_NONE,
            otherwise="red",
        ),
        figure(
            "Pods drafting",
            "Pods with enough drafts for a verdict.",
            "If they are far fewer than all pods, some are idle, run without speculation, or stopped speculating.",
            Query(f"count({_judged()}) or on () vector(0)"),
        ),
        figure(
            "Net negative pods",
            "Pods whose verdict is net_negative: by time if there is a reference without speculation, otherwise by "
            "acceptance rate.",
            "One of many: that pod's draft model or traffic. All at the same time: a rollout or new prompts.",
            Query(LOSING_PODS),
            values=_NONE,
            otherwise="red",
        ),
        figure(
            "Alerts",
            "SpecDecode… alerts that fire in the selection.",
            "The table below lists them, with the time since they fire.",
            Query(f"count({FIRING}) or on () vector(0)"),
            values=_NONE,
            otherwise="red",
        ),
    )
    return beside(3, *((panel, 4) for panel in figures))


def _judged() -> str:
    return at_least(DRAFTS_BY_POD, "min_drafts_per_second", as_number=False)


def _verdicts() -> statetimeline.Panel:
    return states(
        "Worst verdict by model: which, and since when",
        "One band per model, in the colour of its worst temperature on any pod.",
        "Find the temperature and the pod in the tables below. The marks are alerts and restarts.",
        Query(verdict_code(MODEL), "{{model_name}} {{namespace}} {{cluster}}"),
        values=VERDICTS,
        empty="no plug-in anywhere",
    )


def _by_model() -> timeseries.Panel:
    return over_time(
        "Acceptance by model, against the thresholds",
        "Accepted / draft tokens of each model over all its pods, from vLLM's counters.",
        "If a model is below red, start it without --speculative-config or use another draft model. If it is between "
        "the two, compare P99 under load with pods without speculation (below).",
        [
            Query(ACCEPTANCE_BY_NAMESPACE, "{{model_name}} {{namespace}} {{cluster}}"),
            Query(threshold("acceptance_net_negative"), "does not pay below", Style.LIMIT),
            Query(threshold("acceptance_break_even"), "pays above", Style.NOTICE),
        ],
        SHARE,
        high=1,
    )


def _gained() -> timeseries.Panel:
    return over_time(
        "Before and after a change, by model",
        "The acceptance rate and the speedup over decoding without speculation of all speculating pods of a model "
        "together. Orange marks are changes of the configuration or of vLLM's version.",
        "If both fall at a mark, undo that change. An option that docs/why.md names should raise them.",
        [
            Query(recorded(f"{name}:ratio"), f"{title} {{{{model_name}}}} {{{{namespace}}}} {{{{cluster}}}}")
            for name, title in (("engine_acceptance", "acceptance"), ("speedup", "speedup"))
        ],
        COUNT,
    )


def _by_pod() -> timeseries.Panel:
    return over_time(
        "Acceptance across pods: lowest, P10, P50, P90",
        "How the acceptance rate is distributed across pods, without a line for each.",
        "If the lowest is far from P10, one pod is bad: look it up below. If P10 and P90 are far apart, temperatures "
        "are routed unevenly: take advantage of it, and speculate only where it pays.",
        [
            *(
                Query(f"quantile({share:g}, {ACCEPTANCE_BY_POD})", f"P{share * 100:g}" if share else "lowest")
                for share in _SPREAD
            ),
            Query(threshold("acceptance_net_negative"), "does not pay below", Style.LIMIT),
        ],
        SHARE,
        high=1,
    )


def _trust() -> Section:
    coverage = over_time(
        "Lowest coverage, by model",
        "The lowest share of vLLM's draft tokens that the plug-in of any pod reported.",
        "Below the dashes that pod does not export the split by temperature: find it in the table.",
        [
            Query(least(MODEL, series("request_coverage_ratio")), "{{model_name}} {{namespace}} {{cluster}}"),
            Query(threshold("coverage"), "withheld below", Style.LIMIT),
        ],
        SHARE,
    )
    lost = over_time(
        "Errors across the fleet",
        "Lost events, failed polls, vLLM restarts and restarted parts of sidecars, per second.",
        "A step on all pods at the same time is a rollout or a network problem; select an instance to see which.",
        [
            Query(total("reason", "request_events_dropped_total"), "lost: {{reason}}"),
            Query(total("reason", "scrape_errors_total"), "poll failed: {{reason}}"),
            Query(total("", "vllm_restarts_total"), "vLLM restarts"),
            Query(total("part", "internal_errors_total"), "internal: {{part}}"),
        ],
        PER_SECOND,
    )
    versions = over_time(
        "Pods by version of vLLM and of the sidecar",
        "How many pods run each version of the sidecar, and how many engines run each version of vLLM, as far as the "
        "plug-in reports it.",
        "If acceptance changes when a new version appears here, that version is the cause.",
        [
            Query(f"count by (vllm_version) ({series('plugin_info')})", "vLLM {{vllm_version}}"),
            Query(f"count by (version) ({series('build_info')})", "sidecar {{version}}"),
        ],
        COUNT,
    )
    return Section("Can the numbers be trusted?", [beside(8, (coverage, 8), (lost, 8), (versions, 8))])
