"""The rules of Grafana's dashboard-linter, and stricter ones of ours.

Each rule yields what is wrong with a page.

Ours go further: every kind of panel counts, and selectors must use every variable for which the
metric has a label.
"""

import re
from collections import Counter
from itertools import product

from tests.alerts.scene import shipped
from tests.dashboards.dashboard_tools import (
    CONTRACT,
    RATE_INTERVAL,
    RATES,
    panels,
    queries,
    selectors,
)

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Prometheus' own and its client library's; alerts are special, see ``_matchers``.
OTHERS = {
    "up",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}
OPTIONAL = ("cluster", "namespace", "pod")
SCRAPE = (*OPTIONAL, "job", "instance")
RECORDED = {rule["record"] for rule in shipped() if "record" in rule}
# the labels that a recorded series has
BY_LEVEL = {"fleet": (), "sidecar": SCRAPE, "pod": (*SCRAPE, "model_name")}
BY_MODEL = ("cluster", "namespace", "model_name")
ALERTS = {"ALERTS", "ALERTS_FOR_STATE"}
ANYTHING = frozenset({("job", True, ".+")})  # whether Prometheus itself scrapes
SELECTION = ("alertname", True, "SpecDecode.*")  # of panels; inhibitions name alerts
UNITS = {"percentunit", "s", "short", "reqps", "bytes", "dateTimeFromNow"}  # or a suffix


def findings(page):
    """Everything that is wrong with a page, as (rule, what)."""
    return [*_page(page), *_variables(page), *_panels(page), *_queries(page), *_grid(page)]


def _page(page):
    if page.get("editable") is not False:
        yield "uneditable-dashboard", page["title"]
    if not page.get("uid") or "id" in page:
        yield "stable-uid", page["title"]
    if page.get("schemaVersion") != 41:
        yield "schema-version", page.get("schemaVersion")


def _variables(page):
    variables = {variable["name"]: variable for variable in page["templating"]["list"]}
    expected = {"datasource": {"type": "datasource", "query": "prometheus", "label": "Data source"}}
    for name in (*SCRAPE, "model_name", "temperature"):
        every = {"multi": True, "includeAll": True, "allValue": ".*" if name in OPTIONAL else ".+"}
        label = {"label": name.title()} if name in ("job", "instance") else {}
        expected[name] = {"type": "query", "datasource": SOURCE, **every, **label}
    for name, fields in expected.items():
        if not fields.items() <= variables.get(name, {}).items():
            yield f"template-{name}-rule", variables.get(name)
    for name, variable in variables.items():
        if variable["type"] == "query" and variable.get("refresh") != 2:
            yield "template-on-time-change-reload-rule", name


def _panels(page):
    for panel in panels(page):
        title = panel.get("title")
        description = panel.get("description", "")
        targets = panel.get("targets", ())

        if not title:
            yield "panel-title-rule", panel["id"]
        if not description.startswith("**Read:** ") or "\n\n**Do:** " not in description:
            yield "description-says-how-to-read-and-what-to-do", title
        if any(source.get("datasource") != SOURCE for source in (panel, *targets)):
            yield "panel-datasource-rule", title
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
        if unit not in UNITS and not unit.startswith("suffix:"):
            yield "panel-units-rule", title
        if panel.get("type") == "table" and "noValue" not in str(panel["fieldConfig"]["overrides"]):
            yield "empty-cell-is-no-empty-table", title
        if not targets:
            yield "panel-no-targets-rule", title
        yield from _twice("unique-references", [target["refId"] for target in targets])


def _queries(page):
    for query in queries(page):
        if query.expr.startswith("histogram_quantile") and not query.expr.endswith(" >= 0"):
            yield "no-nan-in-legends", query.panel
        if re.search(r"(?<!\w )(?<!: ){{(temperature|position|quantile)}}", query.legend):
            yield "legend-says-what-it-is", (query.panel, query.legend)
        for selector in selectors(query.expr):  # raises if it is not PromQL
            yield from ((rule, (query.panel, query.expr)) for rule in _broken(selector))


def _broken(selector):
    """The rules that a selector breaks."""
    if selector.name not in {*CONTRACT, *OTHERS, *RECORDED, *ALERTS}:
        yield "metric-of-the-contract"
    # An inhibition only takes away from the alerts that are selected, and names them otherwise.
    inhibits = selector.name in ALERTS and SELECTION not in selector.matchers
    of_all = inhibits or selector.matchers == ANYTHING
    for label, value in _matchers(selector.name).items():
        if not of_all and (label, True, value) not in selector.matchers:
            yield f"target-{label}-rule"
    if selector.call in RATES - {"increase"} and selector.seconds != RATE_INTERVAL:
        yield "target-rate-interval-rule"
    metric = CONTRACT.get(selector.name)
    counter = selector.name.endswith(("_total", "_bucket", "_sum", "_count")) and (
        metric or selector.name in OTHERS
    )
    if counter and selector.call not in RATES:
        yield "target-counter-agg-rule"


def _matchers(name):
    """The variables that a selector needs, as regular expressions by label.

    Alerts also match where the label is missing: ``.+`` alone would hide an alert about a whole
    fleet. VictoriaMetrics takes ``.+|`` for ``.+``.
    """
    if name in ALERTS:
        return {label: f"(${label})?" for label in (*SCRAPE, "model_name", "temperature")}
    if name in RECORDED:
        return {label: f"${label}" for label in BY_LEVEL.get(name.partition(":")[0], BY_MODEL)}
    labels = CONTRACT[name].labels if name in CONTRACT else ()
    return {
        label: f"${label}"
        for label in (
            *SCRAPE,
            *(label for label in labels if label in ("model_name", "temperature")),
        )
    }


def _grid(page):
    everything = list(panels(page, rows=True))
    yield from _twice("unique-ids", [0, *(panel["id"] for panel in everything)])  # 0 is no id
    yield from _twice("unique-titles", [panel["title"] for panel in everything])
    cells = []
    for panel in everything:
        x, y, w, h = (panel["gridPos"][name] for name in "xywh")
        if min(x, y) < 0 or min(w, h) < 1 or x + w > 24:
            yield "within-the-grid", panel["title"]
        cells += product(range(x, x + w), range(y, y + h))
    yield from _twice("no-overlap", cells)


def _twice(rule, values):
    """A finding for each value that occurs more than once."""
    return [(rule, value) for value, times in Counter(values).items() if times > 1]
