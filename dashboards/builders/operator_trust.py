"""Whether the numbers can be trusted."""

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import PER_SECOND, SHARE, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import least, series, threshold, total, who, worst
from dashboards.builders.tables import Label, Value, rows


def trust() -> Section:
    """The plug-in, its coverage, and what was lost."""
    coverage = over_time(
        "Coverage",
        "Draft tokens that the plug-in reported / draft tokens that vLLM counted, both since the"
        " engine started: the lowest and the highest engine. It is 1, give or take one second of"
        " traffic.",
        "Outside the dashes the sidecar does not export the split by temperature; its status page"
        " says why.",
        [
            Query(least("", series("request_coverage_ratio")), "lowest"),
            Query(worst("", series("request_coverage_ratio")), "highest"),
            Query(threshold("coverage"), "withheld below", Style.LIMIT),
            Query(f"2 - {threshold('coverage')}", "withheld above", Style.LIMIT),
        ],
        SHARE,
        low=None,
    )
    plugin = rows(
        "The plug-in in vLLM",
        (
            (
                "The plug-in in each engine. observing and idle are good; an engine without a row"
                " is not connected."
            ),
            (
                "refused: it does not support this vLLM; upgrade the sidecar. disabled: it failed"
                " and disabled itself. other_format: rewrite it with this sidecar (specdec-sidecar"
                " plugin DIR) and restart vLLM."
            ),
        ),
        [
            Label("state"),
            Label("who", title="Pod"),
            Label("engine"),
            Label("version"),
            Label("vllm_version"),
        ],
        [Value(worst("state, who, engine, version, vllm_version", who(series("plugin_info"))))],
        sort="state",
        empty="not connected to any engine",
    )

    return Section(
        "Can the numbers be trusted?",
        [
            beside(8, (coverage, 8), (plugin, 16)),
            beside(8, (_lost(), 8), (_limitations(), 8), (_overflow(), 8)),
        ],
        collapsed=True,
    )


def _lost() -> timeseries.Panel:
    lost = total("reason", "request_events_dropped_total")
    every = f"({total('', 'request_events_dropped_total')} + {total('', 'request_events_total')})"

    return over_time(
        "Share of events lost",
        "Finished requests that were lost or refused, as a share of all, by reason.",
        "Above the dashes P10 and the histograms are doubtful. Acceptance rates are still right,"
        " because they come from totals. docs/metrics.md says what to do about each reason.",
        [
            Query(f"{lost} / on () group_left () ({every} > 0)", "{{reason}}"),
            Query(threshold("events_dropped"), "doubtful above", Style.LIMIT),
        ],
        SHARE,
        stacked=True,
    )


def _limitations() -> table.Panel:
    return rows(
        "What vLLM does not export",
        (
            (
                "The metrics that engines do not export, which explains what is missing above."
                " Empty is good."
            ),
            (
                "Most limitations go away with a newer vLLM or another flag; docs/metrics.md says"
                " which."
            ),
        ),
        [Label("limitation"), Label("model_name")],
        [
            Value(
                f"count by (limitation, model_name) ({series('engine_limitation')} == 1)", "Engines"
            )
        ],
        sort="Engines",
        empty="nothing is missing",
    )


def _overflow() -> timeseries.Panel:
    return over_time(
        "Label values past the limit",
        "How often per second a label value was exported as 'other' to limit the number of series.",
        "A steady rate means more models, engines or positions than the limits allow: raise the"
        " limit in the settings.",
        [Query(total("label", "label_overflow_total"), "{{label}}")],
        PER_SECOND,
    )
