"""How far the numbers can be trusted."""

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import COUNT, PER_SECOND, SHARE, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import least, series, threshold, total, worst
from dashboards.builders.tables import Label, Value, rows
from sidecar.export import metrics


def trust() -> Section:
    """Coverage, residual, how requests were attributed, and what was lost."""
    coverage = over_time(
        "Coverage and residual",
        "Coverage: the share of vLLM's draft tokens that was attributed to requests. Residual: how far the inference's "
        "sums are off vLLM's counters.",
        "Coverage below the dashes: traffic bypasses the source, so the temperatures cover only a part. "
        "Residual above about 0.05: prefer exact numbers (--per-request-spec-decode-metrics summary).",
        [
            Query(least("model_name", series(metrics.COVERAGE)), "coverage {{model_name}}"),
            Query(worst("model_name", series(metrics.RESIDUAL)), "residual {{model_name}}"),
            Query(threshold("coverage"), "incomplete below", Style.LIMIT),
        ],
        SHARE,
    )
    attribution = over_time(
        "Requests by attribution",
        "exact: the response carried vLLM's own numbers; inferred: from its counters; none: neither was possible.",
        "Many 'none' are normal with little traffic. With enough traffic they mean that the inference cannot tell this "
        "engine's requests apart: use exact numbers.",
        [Query(total("attribution", metrics.REQUESTS), "{{attribution}}")],
        "reqps",
        stacked=True,
    )
    events = over_time(
        "Events: reported and lost",
        "Finished requests that the source reported, and events that were lost or refused, by reason.",
        "Any loss lowers coverage. docs/metrics.md says what to do about each reason; queue_full means that the "
        "sidecar lacks CPU.",
        [
            Query(total("source", metrics.REQUEST_EVENTS), "reported {{source}}"),
            Query(total("source, reason", metrics.REQUEST_EVENTS_DROPPED), "lost {{source}} {{reason}}", Style.LIMIT),
        ],
        PER_SECOND,
    )
    return Section(
        "Can the numbers be trusted?",
        [
            beside(8, (coverage, 8), (attribution, 8), (events, 8)),
            beside(6, (_lost(), 6), (_asked(), 6), (_limitations(), 6), (_overflow(), 6)),
        ],
    )


def _lost() -> timeseries.Panel:
    lost, reported = total("source", metrics.REQUEST_EVENTS_DROPPED), total("source", metrics.REQUEST_EVENTS)
    return over_time(
        "Share of events lost",
        "Events that were lost or refused, as a share of all events of the source.",
        "Above the dashes the split by temperature is doubtful: the panel above shows the reasons.",
        [
            Query(f"{lost} / ({lost} + {reported} > 0)", "{{source}}"),
            Query(threshold("events_dropped"), "doubtful above", Style.LIMIT),
        ],
        SHARE,
    )


def _asked() -> timeseries.Panel:
    return over_time(
        "Streams asked for usage",
        "Streams for which vLLM was asked for the token count on the client's behalf (requests.ask_usage), by outcome.",
        "missing: vLLM's reply had none, and the request has no numbers. refused: vLLM rejected the option; set "
        "requests.ask_usage to false.",
        [Query(total("outcome", metrics.ASKED_USAGE), "{{outcome}}")],
        PER_SECOND,
    )


def _limitations() -> table.Panel:
    return rows(
        "What vLLM's page does not export",
        (
            "What an engine's page does not export, which explains what is missing above. Empty is good.",
            "Most go away with a newer vLLM or another flag; docs/metrics.md says which.",
        ),
        [Label("instance"), Label("model_name"), Label("limitation")],
        [Value(f"{worst('instance, model_name, limitation', series(metrics.ENGINE_LIMITATION))} == 1", "Holds", COUNT)],
        sort="Holds",
        empty="nothing is missing",
    )


def _overflow() -> timeseries.Panel:
    return over_time(
        "Values past a label's bound",
        "How often per second a value was exported as 'other' to bound the number of series.",
        "A steady rate means more models, engines or positions than the limits allow: raise the limit in the settings.",
        [Query(total("label", metrics.LABEL_OVERFLOW), "{{label}}")],
        PER_SECOND,
    )
