"""The state of the sidecar itself."""

from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Line, Section, beside
from dashboards.builders.panels import COUNT, PER_SECOND, SECONDS, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import (
    SIDECAR,
    first,
    least,
    missing,
    of_process,
    series,
    threshold,
    total,
    who,
    worst,
)
from dashboards.builders.tables import Label, Value, rows

_FEW: Final = 8  # lines where there is one for each pod


def sidecar() -> Section:
    """The sidecar's polls and its own resources."""
    return Section("Is the sidecar well?", [_polls(), _own()], collapsed=True)


def _polls() -> Line:
    down = f"topk({_FEW}, 1 - {who(series('up'))} == 1)"
    gone = (
        f"topk({_FEW}, {worst('who', who(missing(SIDECAR, series('build_info'), at_once=True)))})"
    )

    up = over_time(
        "Pods that do not answer",
        "1 while a sidecar cannot reach its vLLM, or Prometheus not a sidecar that it knew within"
        f" the last hour; at most {_FEW} of each.",
        "While vLLM is down, all data from it is absent, not repeated. The panel on errors shows"
        " the reason.",
        [Query(down, "vLLM of {{who}}"), Query(gone, "sidecar {{who}}")],
        COUNT,
    )

    pace = over_time(
        "Polls of vLLM: age, duration and interval, worst pod",
        "Time since the last successful poll, how long it took, and the current interval between"
        " polls, which grows if polls are expensive for vLLM.",
        "A poll that takes more than about 50 ms blocks vLLM's event loop: keep"
        " scrape_filtered on.",
        [
            Query(f"time() - {least('', series('last_scrape_timestamp_seconds'))}", "age"),
            Query(worst("", series("scrape_duration_seconds")), "duration"),
            Query(worst("", series("scrape_interval_seconds")), "interval"),
        ],
        SECONDS,
    )

    errors = over_time(
        "Errors per second",
        "Failed polls by reason, skipped lines, parts of the sidecar that failed and were"
        " restarted, requests to the sidecar that it refused or cut off, and invalid settings that"
        " it did not apply.",
        "timeout or unreachable: check vLLM. not_an_exposition: the URL is wrong. An internal error"
        " is a bug in the sidecar: please report it with the log.",
        [
            Query(total("reason", "scrape_errors_total"), "poll failed: {{reason}}"),
            Query(total("", "scrape_malformed_lines_total"), "malformed lines"),
            Query(total("part", "internal_errors_total"), "internal: {{part}}"),
            Query(total("reason", "http_refused_total"), "own page refused: {{reason}}"),
            Query(
                total("outcome", "settings_reloads_total", 'outcome="refused"'),
                "settings {{outcome}}",
            ),
        ],
        PER_SECOND,
    )

    return beside(8, (up, 6), (pace, 6), (errors, 6), (_restarts(), 6))


def _restarts() -> timeseries.Panel:
    restarts = f"max by ({SIDECAR}) (increase({series('vllm_restarts_total')}[1h]))"

    return over_time(
        "vLLM restarts in the last hour",
        f"Restarts of vLLM that its sidecar saw in the last hour, on the {_FEW} pods with the"
        " most.",
        "At or above the dashes vLLM is in a crash loop: check its previous log; it often runs out"
        " of memory. The acceptance rate during that time is that of a server that has just"
        " started.",
        [
            Query(who(f"topk({_FEW}, {restarts} > 0)"), "{{who}}"),
            Query(threshold("restarts_per_hour"), "crash loop from", Style.LIMIT),
        ],
        COUNT,
    )


def _own() -> Line:
    cpu = over_time(
        "Sidecar CPU",
        f"Cores in use, by the {_FEW} sidecars that use most.",
        "A few hundredths of a core are normal. Much more means that vLLM exports very many series,"
        " or that scrape_interval is short.",
        [
            Query(
                who(
                    first(
                        _FEW, of_process("process_cpu_seconds_total", "rate({}[$__rate_interval])")
                    )
                ),
                "{{who}}",
            )
        ],
        COUNT,
    )
    memory = over_time(
        "Sidecar memory",
        f"Resident memory, by the {_FEW} sidecars that use most.",
        "The limits in the settings bound it; steady growth is a bug in the sidecar.",
        [Query(who(first(_FEW, of_process("process_resident_memory_bytes"))), "{{who}}")],
        "bytes",
    )
    versions = rows(
        "Versions",
        (
            (
                "The running builds, and how many pods run them; the plug-in's table has the vLLM"
                " versions."
            ),
            (
                "If the numbers of two pods differ, select one after the other and compare their"
                " versions."
            ),
        ),
        [Label("version"), Label("python_version")],
        [Value(f"count by (version, python_version) ({series('build_info')})", "Pods")],
        sort="Pods",
    )

    return beside(8, (cpu, 6), (memory, 6), (versions, 6), (_pushed(), 6))


def _pushed() -> timeseries.Panel:
    return over_time(
        "Alerts sent directly to Alertmanager",
        "Alerts that the sidecar pushed itself, including repeats, by replica and outcome. No data:"
        " the direct push is off, as it should be if Prometheus evaluates the rules.",
        "If a replica accepts nothing, check that it is up and that its address is right. If none"
        " does, no alert arrives this way.",
        [
            Query(
                total("alertmanager, outcome", "alerts_sent_total"), "{{alertmanager}} {{outcome}}"
            )
        ],
        PER_SECOND,
    )
