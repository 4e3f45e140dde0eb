"""What both dashboards have in common: variables, links, annotations."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.builders.expressions import FIRING
from dashboards.builders.query import MODEL, OPTIONAL, of_process, recorded, series

OPERATOR: Final = "specdec-operator"
FLEET: Final = "specdec-fleet"
TAG: Final = "specdec"
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")

_EVERY = VariableOption(selected=True, text="All", value="$__all")


class _Events(AnnotationQuery):
    """A Prometheus annotation.

    The SDK's model lacks the fields that say what Grafana shows of each series.
    """

    def __init__(self, name: str, expr: str, color: str, title: str, text: str) -> None:
        super().__init__(name=name, datasource=SOURCE, expr=expr, icon_color=color)
        self._shown: dict[str, object] = {"titleFormat": title, "textFormat": text, "step": "60s"}

    def to_json(self) -> dict[str, object]:
        return super().to_json() | self._shown


class _EventsBuilder(dashboard.AnnotationQuery):
    """Hands the page a finished annotation."""

    def __init__(self, events: _Events) -> None:
        self._internal = events


def new_page(uid: str, title: str, description: str, *, since: str) -> dashboard.Dashboard:
    """A dashboard without panels, that opens on the time from ``since`` to now."""
    page = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG, "vllm", "speculative-decoding"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time(since, "now")
        .refresh("30s")
        .link(
            dashboard.DashboardLink("Speculative decoding")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
            .tooltip("The other dashboard, with the same selection and time")
        )
        .link(
            dashboard.DashboardLink("Runbooks")
            .type(DashboardLinkType.LINK)
            .icon("doc")
            .url("${runbooks}")
            .target_blank(True)
            .tooltip(
                "What each alert means and what to do. If it leads to localhost, first forward a"
                " sidecar's port: kubectl port-forward POD 9911"
            )
        )
    )
    _add_variables(page)
    _add_annotations(page)

    return page


def _add_variables(page: dashboard.Dashboard) -> None:
    page.with_variable(
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    )

    chosen: list[str] = []  # each variable offers what those before it leave
    for label in ("cluster", "namespace", "job", "pod", "instance"):
        sidecars = f"specdec_build_info{{{', '.join(chosen)}}}"
        every = ".*" if label in OPTIONAL else ".+"
        page.with_variable(
            _variable(label, label.title(), f"label_values({sidecars}, {label})", every)
        )
        chosen.append(f'{label}=~"${label}"')

    # The variable's own name must not narrow its own list.
    models = series("generation_tokens_total").replace(', model_name=~"$model_name"', "")
    page.with_variable(_variable("model_name", "Model", f"label_values({models}, model_name)"))

    temperatures = series("verdict").replace(', temperature=~"$temperature"', "")
    page.with_variable(
        _variable("temperature", "Temperature", f"label_values({temperatures}, temperature)")
    )

    # The address that the alerts link to as well: a setting of the sidecars, else any of them.
    page.with_variable(
        dashboard.QueryVariable("runbooks")
        .label("Runbooks")
        .query("label_values(fleet:specdec_runbooks:any, runbooks)")
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .hide(VariableHide.HIDE_VARIABLE)
    )


def _variable(name: str, label: str, query: str, every: str = ".+") -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .multi(True)
        .include_all(True)
        .all_value(every)
        .current(_EVERY)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .hide(VariableHide.DONT_HIDE)
    )


def _add_annotations(page: dashboard.Dashboard) -> None:
    # One marker an alert, however many pods, models and temperatures it fires for; the same for
    # restarts.
    firing = f"group by (alertname, severity) ({FIRING})"
    page.annotation(
        _EventsBuilder(_Events("Alerts", firing, "red", "{{alertname}}", "{{severity}}"))
    )

    restarts = f"group (changes({series('vllm_restarts_total')}[5m]) > 0)"
    page.annotation(
        _EventsBuilder(_Events("vLLM restarts", restarts, "blue", "vLLM restarted", ""))
    )

    # By model, against its own past: a rollout to new pods is a change, and a reload of some
    # minutes is none.
    configured = recorded("speculation:engines")
    past = f"last_over_time({configured}[1h] offset 5m)"
    changed = f"{configured} unless {past} and on ({MODEL}) {past}"
    shown = (
        "{{model_name}} {{method}} {{num_speculative_tokens}} {{rejection_sample_method}}"
        " {{draft_sample_method}} vLLM {{vllm_version}}"
    )
    page.annotation(
        _EventsBuilder(
            _Events("Speculation changed", changed, "orange", "speculation changed", shown)
        )
    )

    starts = f"group ({of_process('process_start_time_seconds', 'changes({}[5m])')} > 0)"
    page.annotation(
        _EventsBuilder(_Events("Sidecar restarts", starts, "purple", "sidecar restarted", ""))
    )
