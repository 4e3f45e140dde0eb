"""The rules of Grafana's dashboard-linter, and stricter ones of ours: each yields what is wrong with a page.

Ours go further: every kind of panel counts, and selectors must use every variable for which the metric has a label.
"""

from tests.dashboards.dashboard_tools import CONTRACT, RATE_INTERVAL, RATES, panels, queries, selectors

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Prometheus' own and its client library's; alerts are special, see ``_matchers``.
OTHERS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"}
OPTIONAL = ("cluster", "namespace", "pod")
SCRAPE = (*OPTIONAL, "job", "instance")
ALERTS = {"ALERTS", "ALERTS_FOR_STATE"}
UNITS = {"percentunit", "s", "cps", "short", "reqps", "bytes", "dateTimeFromNow"}


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
    variables = {one["name"]: one for one in page["templating"]["list"]}
    source = variables.get("datasource", {})
    if (source.get("type"), source.get("query"), source.get("label")) != ("datasource", "prometheus", "Data source"):
        yield "template-datasource-rule", source
    for name in (*SCRAPE, "model_name", "temperature"):
        one = variables.get(name, {})
        expected = {
            "type": "query",
            "multi": True,
            "includeAll": True,
            "allValue": ".*" if name in OPTIONAL else ".+",
            "refresh": 2,
            "datasource": SOURCE,
        }
        if not expected.items() <= one.items():
            yield f"template-{name}-rule", one
        elif name in ("job", "instance") and one["label"] != name.title():
            yield f"template-{name}-rule", one["label"]
    for one in variables.values():
        if one["type"] == "query" and one.get("refresh") != 2:
            yield "template-on-time-change-reload-rule", one["name"]


def _panels(page):
    for panel in panels(page):
        title = panel.get("title")
        if not title or not panel.get("description"):
            yield "panel-title-description-rule", title
        elif not panel["description"].startswith("**Read:** ") or "\n\n**Do:** " not in panel["description"]:
            yield "description-says-how-to-read-and-what-to-do", title
        if panel.get("datasource") != SOURCE or any(one["datasource"] != SOURCE for one in panel.get("targets", ())):
            yield "panel-datasource-rule", title
        if panel.get("fieldConfig", {}).get("defaults", {}).get("unit") not in UNITS:
            yield "panel-units-rule", title
        if not panel.get("targets"):
            yield "panel-no-targets-rule", title
        references = [one["refId"] for one in panel.get("targets", ())]
        if len(references) != len(set(references)):
            yield "unique-references", title


def _queries(page):
    for query in queries(page):
        where = (query.panel, query.expr)
        try:
            found = selectors(query.expr)
        except ValueError as error:
            yield "target-promql-rule", (*where, error)
            continue
        for selector in found:
            yield from ((rule, where) for rule in _broken(selector))


def _broken(selector):
    """The rules that a selector breaks."""
    if selector.name not in {*CONTRACT, *OTHERS, *ALERTS}:
        yield "metric-of-the-contract"
    for label, value in _matchers(selector.name).items():
        if (label, True, value) not in selector.matchers:
            yield f"target-{label}-rule"
    if selector.call in RATES - {"increase"} and selector.seconds != RATE_INTERVAL:
        yield "target-rate-interval-rule"
    metric = CONTRACT.get(selector.name)
    counter = selector.name.endswith(("_total", "_bucket", "_sum", "_count")) and (metric or selector.name in OTHERS)
    if counter and selector.call not in RATES:
        yield "target-counter-agg-rule"


def _matchers(name):
    """The variables that a selector needs, as regular expressions by label.

    Alerts also match where the label is missing: ``.+`` alone would hide an alert about a whole fleet.
    """
    if name in ALERTS:
        return {label: f"${label}|" for label in (*SCRAPE, "model_name", "temperature")}
    labels = CONTRACT[name].labels if name in CONTRACT else ()
    return {label: f"${label}" for label in (*SCRAPE, *(one for one in labels if one in ("model_name", "temperature")))}


def _grid(page):
    everything = list(panels(page, rows=True))
    ids = [panel["id"] for panel in everything]
    if len(ids) != len(set(ids)) or 0 in ids:
        yield "unique-ids", ids
    titles = [panel["title"] for panel in everything]
    if len(titles) != len(set(titles)):
        yield "unique-titles", titles
    taken = {}
    for panel in everything:
        place = panel["gridPos"]
        if place["x"] < 0 or place["y"] < 0 or place["x"] + place["w"] > 24 or place["h"] < 1 or place["w"] < 1:
            yield "within-the-grid", panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (x, y) in taken:
                    yield "no-overlap", (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]
