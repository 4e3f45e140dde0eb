"""Metrics of the sidecar itself: its polls, its settings and the plug-in's messages."""

import platform
from typing import Final

from sidecar import __version__
from sidecar.export.declaration import REPORT, SETTINGS

METRICS: Final = {
    REPORT.gauge(
        "build_info",
        lambda _: {(__version__, platform.python_version()): 1},
        "version",
        "python_version",
    ): "1, labelled with the version of the sidecar and of Python.",
    REPORT.gauge(
        "up", "scrape.up"
    ): "1 if the last poll of vLLM's /metrics succeeded and is at most two intervals old, else 0.",
    REPORT.gauge(
        "last_scrape_timestamp_seconds", "scrape.last_scrape"
    ): "Unix time of the last successful poll.",
    REPORT.gauge(
        "scrape_duration_seconds",
        lambda report: report.scrape.duration if report.scrape.up else None,
    ): "Duration of the last successful poll.",
    REPORT.gauge(
        "scrape_interval_seconds", "scrape.interval"
    ): "Current interval between two polls.",
    REPORT.counter(
        "scrape_errors", "scrape.errors", "reason"
    ): "Polls that returned no usable page, by reason.",
    REPORT.counter(
        "scrape_malformed_lines", "scrape.malformed_lines"
    ): "Malformed lines and histograms that were skipped on vLLM's page.",
    REPORT.counter(
        "vllm_restarts", "scrape.vllm_restarts"
    ): "Restarts of vLLM that the sidecar has seen.",
    REPORT.counter(
        "internal_errors", "own.failures", "part"
    ): "Failures of a part of the sidecar, each followed by a restart of that part.",
    REPORT.counter(
        "label_overflow", "own.label_overflow", "label"
    ): "Label values reported as 'other' to bound the number of series, counted at every poll.",
    REPORT.counter("http_refused", "own.http_refusals", "reason"): (
        "Connections and requests to the sidecar's own pages that were refused or gave way to"
        " others."
    ),
    REPORT.counter(
        "settings_reloads", "own.reloads", "outcome"
    ): "Reloads of the settings, by outcome: applied or refused.",
    REPORT.gauge("settings_invalid", lambda report: len(report.own.invalid_settings)): (
        "Problems of the settings as they were read last. What was invalid at the start has its"
        " default, what was invalid at a reload its old value."
    ),
    REPORT.counter(
        "alerts_sent", "own.alerts_sent", "alertmanager", "outcome"
    ): "Alerts pushed directly to Alertmanager, repeats included.",
    SETTINGS.gauge(
        "links_info",
        lambda settings: {
            (settings.alerting.runbooks or "", settings.alerting.dashboards or ""): 1
        },
        *("runbooks", "dashboards"),
    ): "1; the labels are the addresses that alerts link to, empty if not configured.",
    SETTINGS.gauge(
        "threshold",
        lambda settings: {
            **settings.thresholds.model_dump(),
            "latency_window": settings.latency_window,
        },
        "name",
    ): "Thresholds in force, and latency_window in seconds; rules and dashboards read them.",
    REPORT.gauge(
        "plugin_info",
        lambda report: {
            (engine.engine, engine.version, engine.vllm_version, engine.state): 1
            for engine in report.plugin.engines
        },
        *("engine", "version", "vllm_version", "state"),
    ): (
        "1 for each engine whose plug-in is connected, labelled with its state and the versions of"
        " both."
    ),
    REPORT.counter(
        "request_events", "plugin.events"
    ): "Finished requests that the plug-in reported.",
    REPORT.counter(
        "request_events_dropped", "plugin.dropped", "reason"
    ): "Messages and finished requests of the plug-in that were lost or refused, by reason.",
}
