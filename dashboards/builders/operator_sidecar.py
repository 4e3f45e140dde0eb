"""The state of the sidecar itself."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Line, Section, beside
from dashboards.builders.panels import COUNT, PER_SECOND, SECONDS, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import least, of_process, series, threshold, total, worst
from dashboards.builders.tables import Label, Value, rows
from sidecar.export import metrics


def sidecar() -> Section:
    """The sidecar's polls and its own resources."""
    return Section("The sidecar itself", [_polls(), _own()], collapsed=True)


def _polls() -> Line:
    up = over_time(
        "Polls of vLLM's page: success and age",
        "1 if the last poll succeeded and is recent, else 0. Age: time since the last good page.",
        "At 0, everything that comes from vLLM is absent, not repeated. See the faults for the reason.",
        [
            Query(least("instance", series(metrics.UP)), "up {{instance}}"),
            Query(
                f"time() - {least('instance', series(metrics.LAST_SCRAPE))}",
                "age (s) {{instance}}",
            ),
        ],
        COUNT,
    )
    pace = over_time(
        "Polls of vLLM's page: duration and pause",
        "How long the last good poll took, and the current pause between polls, which grows if vLLM's page is "
        "expensive.",
        "A poll of more than about 50 ms holds up vLLM's event loop: keep scrape_filtered on.",
        [
            Query(worst("instance", series(metrics.SCRAPE_DURATION)), "duration {{instance}}"),
            Query(worst("instance", series(metrics.SCRAPE_INTERVAL)), "pause {{instance}}"),
        ],
        SECONDS,
    )
    errors = over_time(
        "Faults per second",
        "Polls without a usable page by reason, skipped lines, parts of the sidecar that failed and were restarted, "
        "requests to the sidecar's own pages that it refused or cut, and invalid settings that it did not apply.",
        "timeout or unreachable: vLLM. not_an_exposition: a wrong URL. Any internal error is a bug in the sidecar: "
        "please report it with the log.",
        [
            Query(total("reason", metrics.SCRAPE_ERRORS), "poll failed: {{reason}}"),
            Query(total("", metrics.MALFORMED_LINES), "malformed lines"),
            Query(total("part", metrics.INTERNAL_ERRORS), "internal: {{part}}"),
            Query(total("reason", metrics.HTTP_REFUSED), "own page refused: {{reason}}"),
            Query(total("outcome", metrics.SETTINGS_RELOADS, 'outcome="refused"'), "settings {{outcome}}"),
        ],
        PER_SECOND,
    )
    return beside(8, (up, 6), (pace, 6), (errors, 6), (_restarts(), 6))


def _restarts() -> timeseries.Panel:
    restarts = f"sum by (instance) (increase({series(metrics.VLLM_RESTARTS)}[1h]))"
    return over_time(
        "Restarts of vLLM within an hour",
        "Restarts of vLLM that the sidecar saw within the last hour.",
        "At or above the dashes it is a crash loop: see vLLM's last log; it is often out of memory. Acceptance in that "
        "time is that of a server that has just started.",
        [
            Query(restarts, "{{instance}}"),
            Query(threshold("restarts_per_hour"), "crash loop from", Style.LIMIT),
        ],
        COUNT,
    )


def _own() -> Line:
    cpu = over_time(
        "CPU of the sidecar",
        "Cores in use, by sidecar.",
        "A few hundredths of a core are usual. Much more means a page with very many series, or a "
        "short scrape_interval.",
        [Query(of_process("process_cpu_seconds_total", "rate({}[$__rate_interval])"), "{{instance}}")],
        COUNT,
    )
    memory = over_time(
        "Memory of the sidecar",
        "Resident memory, by sidecar.",
        "It is bounded by the limits in the settings; steady growth is a bug in the sidecar.",
        [Query(of_process("process_resident_memory_bytes"), "{{instance}}")],
        "bytes",
    )
    versions = rows(
        "Versions",
        (
            "Which build runs; the plug-in's table has the versions of vLLM.",
            "Compare pods that differ in their numbers.",
        ),
        [Label("instance"), Label("version"), Label("python_version")],
        [Value(worst("instance, version, python_version", series(metrics.BUILD_INFO)), "Runs", COUNT)],
        sort="Runs",
    )
    return beside(8, (cpu, 6), (memory, 6), (versions, 6), (_pushed(), 6))


def _pushed() -> timeseries.Panel:
    return over_time(
        "Alerts sent directly to Alertmanager",
        "Alerts that the sidecar pushed itself, repeats included, by replica and outcome. No data: the direct "
        "push is off, as it should be if Prometheus has the rules.",
        "If a replica accepts nothing, check that it is up and its address is right. If none does, no alert arrives "
        "this way.",
        [Query(total("alertmanager, outcome", metrics.ALERTS_SENT), "{{alertmanager}} {{outcome}}")],
        PER_SECOND,
    )
