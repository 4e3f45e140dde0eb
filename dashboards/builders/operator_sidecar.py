"""The state of the sidecar itself."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Line, Section, beside
from dashboards.builders.panels import COUNT, PER_SECOND, SECONDS, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import least, of_process, series, threshold, total, worst
from dashboards.builders.tables import Label, Value, rows


def sidecar() -> Section:
    """The sidecar's polls and its own resources."""
    return Section("The sidecar itself", [_polls(), _own()], collapsed=True)


def _polls() -> Line:
    up = over_time(
        "Polls of vLLM: success and age",
        "1 if the last poll succeeded and is recent, otherwise 0. Age: time since the last successful poll.",
        "At 0, all data from vLLM is absent, not repeated. The panel on errors shows the reason.",
        [
            Query(least("instance", series("up")), "up {{instance}}"),
            Query(
                f"time() - {least('instance', series('last_scrape_timestamp_seconds'))}",
                "age (s) {{instance}}",
            ),
        ],
        COUNT,
    )
    pace = over_time(
        "Polls of vLLM: duration and interval",
        "How long the last successful poll took, and the current interval between polls, which grows if polls are "
        "expensive for vLLM.",
        "A poll that takes more than about 50 ms blocks vLLM's event loop: keep scrape_filtered on.",
        [
            Query(worst("instance", series("scrape_duration_seconds")), "duration {{instance}}"),
            Query(worst("instance", series("scrape_interval_seconds")), "interval {{instance}}"),
        ],
        SECONDS,
    )
    errors = over_time(
        "Errors per second",
        "Failed polls by reason, skipped lines, parts of the sidecar that failed and were restarted, requests to the "
        "sidecar that it refused or cut off, and invalid settings that it did not apply.",
        "timeout or unreachable: check vLLM. not_an_exposition: the URL is wrong. An internal error is a bug in the "
        "sidecar: please report it with the log.",
        [
            Query(total("reason", "scrape_errors_total"), "poll failed: {{reason}}"),
            Query(total("", "scrape_malformed_lines_total"), "malformed lines"),
            Query(total("part", "internal_errors_total"), "internal: {{part}}"),
            Query(total("reason", "http_refused_total"), "own page refused: {{reason}}"),
            Query(total("outcome", "settings_reloads_total", 'outcome="refused"'), "settings {{outcome}}"),
        ],
        PER_SECOND,
    )
    return beside(8, (up, 6), (pace, 6), (errors, 6), (_restarts(), 6))


def _restarts() -> timeseries.Panel:
    restarts = f"sum by (instance) (increase({series('vllm_restarts_total')}[1h]))"
    return over_time(
        "vLLM restarts in the last hour",
        "Restarts of vLLM that the sidecar saw in the last hour.",
        "At or above the dashes vLLM is in a crash loop: check its previous log; it often runs out of memory. The "
        "acceptance rate during that time is that of a server that has just started.",
        [
            Query(restarts, "{{instance}}"),
            Query(threshold("restarts_per_hour"), "crash loop from", Style.LIMIT),
        ],
        COUNT,
    )


def _own() -> Line:
    cpu = over_time(
        "Sidecar CPU",
        "Cores in use, by sidecar.",
        "A few hundredths of a core are normal. Much more means that vLLM exports very many series, or that "
        "scrape_interval is short.",
        [Query(of_process("process_cpu_seconds_total", "rate({}[$__rate_interval])"), "{{instance}}")],
        COUNT,
    )
    memory = over_time(
        "Sidecar memory",
        "Resident memory, by sidecar.",
        "The limits in the settings bound it; steady growth is a bug in the sidecar.",
        [Query(of_process("process_resident_memory_bytes"), "{{instance}}")],
        "bytes",
    )
    versions = rows(
        "Versions",
        (
            "The running builds; the plug-in's table has the vLLM versions.",
            "If the numbers of two pods differ, compare their versions.",
        ),
        [Label("instance"), Label("version"), Label("python_version")],
        [Value(worst("instance, version, python_version", series("build_info")), "Runs", COUNT)],
        sort="Runs",
    )
    return beside(8, (cpu, 6), (memory, 6), (versions, 6), (_pushed(), 6))


def _pushed() -> timeseries.Panel:
    return over_time(
        "Alerts sent directly to Alertmanager",
        "Alerts that the sidecar pushed itself, including repeats, by replica and outcome. No data: the direct push is "
        "off, as it should be if Prometheus evaluates the rules.",
        "If a replica accepts nothing, check that it is up and that its address is right. If none does, no alert "
        "arrives this way.",
        [Query(total("alertmanager, outcome", "alerts_sent_total"), "{{alertmanager}} {{outcome}}")],
        PER_SECOND,
    )
