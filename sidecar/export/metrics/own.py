"""Metrics of the sidecar itself: its polls, its settings and the plug-in's messages."""

import platform
from typing import Final

from sidecar import __version__
from sidecar.export.declaration import PLUGIN, REPORT, SETTINGS

METRICS: Final = (
    REPORT.gauge(
        "build_info",
        "1, labelled with the version of the sidecar and of Python.",
        ["version", "python_version"],
        value=lambda _: {(__version__, platform.python_version()): 1},
    ),
    REPORT.gauge(
        "up",
        (
            "1 if the last poll of vLLM's /metrics succeeded and is at most two intervals (or "
            "two seconds) old, else 0."
        ),
        value=lambda report: report.scrape.up,
    ),
    REPORT.gauge(
        "last_scrape_timestamp_seconds",
        "Unix time of the last successful poll.",
        value=lambda report: report.scrape.last_scrape,
    ),
    REPORT.gauge(
        "scrape_duration_seconds",
        "Duration of the last successful poll.",
        value=lambda report: report.scrape.duration if report.scrape.up else None,
    ),
    REPORT.gauge(
        "scrape_interval_seconds",
        "Current interval between two polls.",
        value=lambda report: report.scrape.interval,
    ),
    REPORT.counter(
        "scrape_errors",
        "Polls that returned no usable page, by reason.",
        ["reason"],
        value=lambda report: report.scrape.errors,
    ),
    REPORT.counter(
        "scrape_malformed_lines",
        "Malformed lines and histograms that were skipped on vLLM's page.",
        value=lambda report: report.scrape.malformed_lines,
    ),
    REPORT.counter(
        "vllm_restarts",
        "Restarts of vLLM that the sidecar has seen.",
        value=lambda report: report.scrape.vllm_restarts,
    ),
    REPORT.gauge(
        "engine_healthy",
        (
            "Whether an engine works: 0 if it is stalled, or collapsed where that is watched, for "
            "as long as engine_health says; 1 if it is known not to be; absent while unknown, as "
            "for an idle engine without a probe, whose page looks the same if it hangs."
        ),
        ["model_name", "engine", "reason"],
        value=lambda report: {
            labels: float(not is_ailing) for labels, is_ailing in report.health.ailments.items()
        },
    ),
    REPORT.gauge(
        "probe_success",
        (
            "1 if vLLM answered the last probe, 0 if not; absent before the first (probe.interval"
            " switches them on), while one waits for its answer, and if other requests came first."
        ),
        value=lambda report: report.probe.is_answered,
    ),
    REPORT.gauge(
        "probe_duration_seconds",
        "How long vLLM took for the last probe that it answered, one token.",
        value=lambda report: report.probe.seconds,
    ),
    REPORT.counter(
        "probes",
        (
            "Probes by outcome: answered, unanswered (and nothing has moved), refused, unreachable,"
            " overtaken (not answered in time, but other requests were)."
        ),
        ["outcome"],
        value=lambda report: report.probe.outcomes,
    ),
    REPORT.counter(
        "internal_errors",
        "Failures of a part of the sidecar, each followed by a restart of that part.",
        ["part"],
        value=lambda report: report.own.failures,
    ),
    REPORT.counter(
        "label_overflow",
        "Label values reported as 'other' to bound the number of series, counted at every poll.",
        ["label"],
        value=lambda report: report.own.label_overflow,
    ),
    REPORT.counter(
        "http_refused",
        (
            "Connections and requests to the sidecar's own pages that were refused or gave way to"
            " others."
        ),
        ["reason"],
        value=lambda report: report.own.http_refusals,
    ),
    REPORT.counter(
        "settings_reloads",
        "Reloads of the settings, by outcome: applied or refused.",
        ["outcome"],
        value=lambda report: report.own.reloads,
    ),
    REPORT.gauge(
        "settings_invalid",
        (
            "Problems of the settings as they were read last. What was invalid at the start has its"
            " default, what was invalid at a reload its old value."
        ),
        value=lambda report: len(report.own.invalid_settings),
    ),
    REPORT.counter(
        "alerts_sent",
        "Alerts pushed directly to Alertmanager, repeats included.",
        ["alertmanager", "outcome"],
        value=lambda report: report.own.alerts_sent,
    ),
    SETTINGS.gauge(
        "links_info",
        "1; the labels are the addresses that alerts link to, empty if not configured.",
        ["runbooks", "dashboards"],
        value=lambda settings: {
            (settings.alerting.runbooks or "", settings.alerting.dashboards or ""): 1
        },
    ),
    SETTINGS.gauge(
        "threshold",
        "Thresholds in force, and latency_window in seconds; rules and dashboards read them.",
        ["name"],
        value=lambda settings: {
            **settings.thresholds.model_dump(),
            "latency_window": settings.latency_window,
        },
    ),
    PLUGIN.gauge(
        "plugin_info",
        (
            "1 for each engine whose plug-in is connected, labelled with its state and the "
            "versions of both."
        ),
        ["version", "vllm_version", "state"],
        value=lambda plugin: {(plugin.version, plugin.vllm_version, plugin.state): 1},
    ),
    REPORT.counter(
        "request_events",
        "Finished requests that the plug-in reported.",
        value=lambda report: report.plugin.events,
    ),
    REPORT.counter(
        "request_events_dropped",
        "Messages and finished requests of the plug-in that were lost or refused, by reason.",
        ["reason"],
        value=lambda report: report.plugin.dropped,
    ),
)
