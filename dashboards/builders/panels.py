"""Panels of each kind, with this project's defaults."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.builders.page import SOURCE

SHARE: Final = "percentunit"
SECONDS: Final = "s"
PER_SECOND: Final = "suffix:/s"
TOKENS_PER_SECOND: Final = "suffix:tok/s"  # as vLLM's own dashboards have it
TIMES: Final = "suffix:x"
COUNT: Final = "short"
AGO: Final = "dateTimeFromNow"

# What lines are made of covers minutes, so more points than this show nothing; with hundreds of
# pods they cost seconds.
FINEST: Final = "1m"

# Where a verdict or a comparison is shown, rates reach back this far: the minute that Grafana would
# take is noise.
SMOOTH: Final = "5m"


class Line(Enum):
    """How a series is drawn."""

    PLAIN = ""
    WHOLE = "thick"  # what the others are parts of, or are compared with
    ALL = "text"  # the one whole of all parts, in the colour of text
    LIMIT = "red"  # a threshold not to be crossed
    NOTICE = "orange"  # a threshold worth knowing


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel; ``legend`` has ``{{label}}`` where a label's value goes.

    ``unit`` is its own where the panel's does not fit, and ``color`` where its name's does not.
    """

    expr: str
    legend: str = ""
    line: Line = Line.PLAIN
    unit: str = ""
    color: str = ""


TEMPERATURE: Final = "T {{temperature}}"  # how the legend of a temperature's series ends
# From cold to hot, by the lower edge of any buckets. Red, orange, yellow and green mean verdicts
# and thresholds.
_RAMP: Final = (
    ("0", "#c0d8ff"),
    ("0-.+", "#8ab8ff"),
    ("0\\.[1-4].*", "#5794f2"),
    ("0\\.[56].*", "#b877d9"),
    ("0\\.[7-9].*", "#e685d3"),
    ("[1-9].*", "#f9a8e8"),
)


Mapping = dict[int, tuple[str, str]]  # value -> text, colour

AnyPanel = TypeVar(
    "AnyPanel", timeseries.Panel, stat.Panel, statetimeline.Panel, heatmap.Panel, dashboard.Panel
)


def described(panel: AnyPanel, title: str, read: str, do: str) -> AnyPanel:
    """The panel with its title and what its reader needs: how to read it, and what to do then."""
    return panel.title(title).description(f"**Read:** {read}\n\n**Do:** {do}").datasource(SOURCE)


def mapped(values: Mapping) -> list[models.ValueMapping]:
    """Values shown as words in colours."""
    results = {
        str(value): models.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(values.items())
    }
    return [models.ValueMap(options=results)]


def target(index: int, expr: str, legend: str = "") -> prometheus.Dataquery:
    """A query over the page's time range, the ``index``-th of its panel.

    Its quotes are single ones: a double one takes four bytes of a ConfigMap, of which a client-side
    apply can store 256 KiB.
    """
    reference = chr(ord("A") + index)
    short = expr.replace('"', "'")
    query = prometheus.Dataquery().expr(short).ref_id(reference).datasource(SOURCE).range()
    return query.legend_format(legend) if legend else query


def over_time(
    title: str,
    read: str,
    do: str,
    queries: Sequence[Query],
    unit: str,
    *,
    low: float | None = 0,
    high: float | None = None,
    stacked: bool = False,
    compact: bool = False,
    empty: str = "No data",
) -> timeseries.Panel:
    """Lines over time, thresholds dashed; ``stacked`` are areas that add up.

    The axis goes from ``low`` to ``high``. A ``compact`` legend has several names in a line, each
    with its latest value only.
    """
    modes = common_models.LegendDisplayMode
    mode = modes.LIST if compact else modes.TABLE
    legend = common.VizLegendOptions().display_mode(mode).show_legend(True)
    shown = ["lastNotNull"] if compact else ["lastNotNull", "min", "max"]

    panel = (
        described(timeseries.Panel(), title, read, do)
        .unit(unit)
        .no_value(empty)
        .interval(FINEST)
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .fill_opacity(40 if stacked else 0)
        .line_width(1)
        .show_points(common_models.VisibilityMode.AUTO)
        .legend(legend.placement(common_models.LegendPlacement.BOTTOM).calcs(shown))
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )

    if low is not None:
        panel.min(low)
    if high is not None:
        panel.max(high)
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))

    for index, query in enumerate(queries):
        panel.with_target(target(index, query.expr, query.legend))
        if query.line is not Line.PLAIN or query.color:
            panel.override_by_query(chr(ord("A") + index), _drawn(query))

    if any(query.legend.endswith(TEMPERATURE) for query in queries):
        for bucket, color in _RAMP:
            fixed = models.DynamicConfigValue(
                id_val="color", value={"mode": "fixed", "fixedColor": color}
            )
            panel.override_by_regexp(f"/(^| )T {bucket}$/", [fixed])

    return panel


def _drawn(query: Query) -> list[models.DynamicConfigValue]:
    line = query.line
    is_thick = line in {Line.WHOLE, Line.ALL}
    properties: dict[str, object] = {
        "custom.fillOpacity": 0,
        "custom.lineWidth": 3 if is_thick else 2,
    }

    if color := query.color or ("" if line is Line.WHOLE else line.value):
        properties["color"] = {"mode": "fixed", "fixedColor": color}

    if line in {Line.LIMIT, Line.NOTICE}:
        properties["custom.lineStyle"] = {"fill": "dash", "dash": [10, 10]}
        properties["custom.stacking"] = {"mode": "none"}

    return [
        models.DynamicConfigValue(id_val=name, value=value) for name, value in properties.items()
    ]


def figure(
    title: str,
    read: str,
    do: str,
    *queries: Query,
    unit: str = COUNT,
    values: Mapping | None = None,
    otherwise: str = "text",
    empty: str = "-",
) -> stat.Panel:
    """One figure, as of now, or several side by side; a legend is the name above it.

    ``empty`` stands for no data.

    With ``values`` those are words on a ground of their colour; ``otherwise`` is the colour of any
    other value.
    """
    panel = described(stat.Panel(), title, read, do).unit(unit).no_value(empty).interval(SMOOTH)

    for index, query in enumerate(queries):
        panel.with_target(target(index, query.expr, query.legend).instant())
        if query.unit:
            own = models.DynamicConfigValue(id_val="unit", value=query.unit)
            panel.override_by_query(chr(ord("A") + index), [own])

    if any(query.legend for query in queries):
        panel.text_mode(common_models.BigValueTextMode.VALUE_AND_NAME)
        panel.text(common.VizTextDisplayOptions().title_size(13).value_size(26))

    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.graph_mode(common_models.BigValueGraphMode.NONE)
    panel.thresholds(dashboard.ThresholdsConfig().steps([models.Threshold(color=otherwise)]))

    if values is None:
        return panel.color_mode(common_models.BigValueColorMode.VALUE)
    return panel.mappings(mapped(values)).color_mode(common_models.BigValueColorMode.BACKGROUND)


def states(
    title: str, read: str, do: str, *queries: Query, values: Mapping, empty: str
) -> statetimeline.Panel:
    """A band for each series, in its values' colours: what holds since when."""
    panel = described(statetimeline.Panel(), title, read, do)
    for index, query in enumerate(queries):
        panel.with_target(target(index, query.expr, query.legend))

    return (
        panel.unit(COUNT)
        .interval(FINEST)
        .mappings(mapped(values))
        .no_value(empty)
        .merge_values(True)
        .show_value(common_models.VisibilityMode.AUTO)
        .fill_opacity(80)
        .row_height(0.85)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )


def distribution(title: str, read: str, do: str, expr: str, unit: str) -> heatmap.Panel:
    """A histogram over time; ``expr`` gives one series a bucket, by ``le``."""
    return (
        described(heatmap.Panel(), title, read, do)
        .with_target(target(0, expr, "{{le}}").format(PromQueryFormat.HEATMAP))
        .unit(COUNT)
        .interval(SMOOTH)
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .fill("dark-orange")
            .scale(HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(common_models.AxisPlacement.LEFT))
        .show_value(common_models.VisibilityMode.NEVER)
        .cell_gap(1)
        .show_y_histogram()
        .show_legend()
    )
