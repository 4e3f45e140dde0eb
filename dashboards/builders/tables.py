"""Tables: one row a thing, one column a query, as of now."""

from collections.abc import Mapping as ReadOnly
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import TableCellHeight
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.builders.page import OPERATOR, SOURCE
from dashboards.builders.panels import COUNT, SMOOTH, Mapping, mapped, target

RUNBOOKS: Final = "${runbooks}"
# The tables' names of alerts lack the prefix.
ALERT_RUNBOOK: Final = f"{RUNBOOKS}/SpecDecode${{__value.text}}.md"

# Not the panel's own, which says why the whole table is empty.
_EMPTY_CELL: Final = [models.DynamicConfigValue(id_val="noValue", value="-")]


@dataclass(frozen=True, slots=True)
class Label:
    """A column with a label, under the label's own name or a title; ``link`` is where it leads.

    Links refer to the label's own name. ``width`` is in pixels, 0 for a share of what others leave;
    Grafana's least is 150. A ``hidden`` one is for links. ``words`` are shown in place of its
    values.
    """

    name: str
    link: str = ""
    title: str = ""
    width: int = 0
    hidden: bool = False
    words: ReadOnly[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A column with the value of a query that keeps the table's labels.

    Without a title there is no column.
    """

    expr: str
    title: str = ""
    unit: str = COUNT
    values: Mapping | None = None  # shown as words in colours
    width: int = 0


def operator_link(*labels: str) -> str:
    """The operator's page for what a row is about: its ``labels`` become the page's selection."""
    kept = urlencode(
        {f"var-{label}": f"${{__data.fields.{label}:percentencode}}" for label in labels},
        safe="${}:",
    )
    return f"/d/{OPERATOR}?${{datasource:queryparam}}&${{__url_time_range}}&{kept}"


def rows(
    title: str,
    description: tuple[str, str],
    labels: Sequence[Label],
    values: Sequence[Value],
    *,
    sort: str,
    descending: bool = True,
    then: str = "",
    order: Sequence[str] = (),
    empty: str = "-",
) -> table.Panel:
    """A table sorted by the column with the title ``sort``.

    ``description`` says how to read it and what to do.

    Equal rows are sorted by the column ``then``. The columns are in this ``order``, else labels
    before values.
    """
    panel = (
        table.Panel().title(title).datasource(SOURCE).no_value(empty).interval(SMOOTH).unit("short")
    )
    panel.description(f"**Read:** {description[0]}\n\n**Do:** {description[1]}")

    for index, value in enumerate(values):
        panel.with_target(target(index, value.expr).instant().format(PromQueryFormat.TABLE))

    panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        models.DataTransformerConfig(id_val="organize", options=_columns(labels, values, order))
    )

    panel.override_by_regexp("/.*/", _EMPTY_CELL)
    for value in values:
        if value.title:
            panel.override_by_name(value.title, _cells(value))
    for label in labels:
        if properties := _column(label):
            panel.override_by_name(label.title or label.name, _values(properties))

    columns = (sort, then) if then else (sort,)
    panel.sort_by(
        [common.TableSortByFieldState().display_name(column).desc(descending) for column in columns]
    )

    return panel.cell_height(TableCellHeight.SM).filterable(True)


def matrix(
    title: str,
    description: tuple[str, str],
    expr: str,
    *,
    row: str,
    column: str,
    unit: str,
    high: float,
) -> table.Panel:
    """A table of one query with a row and a column for each value of two labels.

    Its cells are coloured from 0 to ``high``.
    """
    panel = (
        table.Panel()
        .title(title)
        .datasource(SOURCE)
        .no_value("-")
        .interval(SMOOTH)
        .unit(unit)
        .min(0)
        .max(high)
    )
    panel.description(f"**Read:** {description[0]}\n\n**Do:** {description[1]}")
    panel.with_target(target(0, expr).instant().format(PromQueryFormat.TABLE))

    # A pair without a value is empty, not the 0 that Grafana would colour.
    grouped = {
        "rowField": row,
        "columnField": column,
        "valueField": "Value",
        "emptyValue": "null",
    }

    # Both in the order of their names: columns come in that of the rows, and Prometheus gives rows
    # in any order.
    panel.with_transformation(
        models.DataTransformerConfig(id_val="sortBy", options={"sort": [{"field": column}]})
    )
    panel.with_transformation(
        models.DataTransformerConfig(id_val="groupingToMatrix", options=grouped)
    )

    corner = f"{row}\\{column}"  # Grafana's name for the first column
    panel.override_by_regexp("/.*/", _EMPTY_CELL)
    panel.override_by_name(corner, _values({"displayName": row.capitalize()}))
    panel.sort_by([common.TableSortByFieldState().display_name(row.capitalize())])
    panel.override_by_field_type("number", _shaded())

    return panel.cell_height(TableCellHeight.SM)


def _shaded() -> list[models.DynamicConfigValue]:
    return [
        models.DynamicConfigValue(id_val="color", value={"mode": "continuous-RdYlGr"}),
        models.DynamicConfigValue(
            id_val="custom.cellOptions", value={"type": "color-background", "mode": "basic"}
        ),
    ]


def _columns(
    labels: Sequence[Label], values: Sequence[Value], order: Sequence[str]
) -> dict[str, object]:
    """The options of ``organize``.

    Merged queries name their values ``Value #A`` and so on, a single one names its value ``Value``:
    also the first of several, where only that one has an answer.
    """
    fields = [label.name for label in labels]
    if len(values) == 1:
        fields.append("Value")
    else:
        fields += [f"Value #{chr(ord('A') + index)}" for index in range(len(values))]

    titles = [*(label.title or label.name for label in labels), *(value.title for value in values)]
    named = dict(zip(fields, titles, strict=True))
    named["Value"] = values[0].title
    untitled = {field: True for field, title in named.items() if not title}

    return {
        "excludeByName": {"Time": True} | untitled,
        "indexByName": {
            field: order.index(title) if title in order else at
            for at, (field, title) in enumerate(named.items())
        },
        "renameByName": {field: title for field, title in named.items() if title},
    }


def _column(label: Label) -> dict[str, object]:
    properties: dict[str, object] = {"custom.width": label.width} if label.width else {}
    if label.hidden:
        properties["custom.hidden"] = True
    if label.words:
        results = {code: models.ValueMappingResult(text=text) for code, text in label.words.items()}
        properties["mappings"] = [models.ValueMap(options=results)]
    if label.link:
        link = {"title": "Open", "url": label.link, "targetBlank": label.link.startswith(RUNBOOKS)}
        properties["links"] = [link]

    return properties


def _cells(value: Value) -> list[models.DynamicConfigValue]:
    properties: dict[str, object] = {"unit": value.unit}
    if value.values is not None:
        properties["mappings"] = mapped(value.values)
        properties["custom.cellOptions"] = {"type": "color-text"}
    if value.width:
        properties["custom.width"] = value.width
    return _values(properties)


def _values(properties: dict[str, object]) -> list[models.DynamicConfigValue]:
    return [
        models.DynamicConfigValue(id_val=name, value=found) for name, found in properties.items()
    ]
