"""The rules of Grafana's linter and ours, and that each rule finds the fault it is for."""

import copy

import pytest

from sidecar.settings.groups import Thresholds
from tests.dashboards.dashboard_lint import ALERTS, OTHERS, findings
from tests.dashboards.dashboard_tools import CONTRACT, annotations, panels, queries, selectors


def test_no_rule_is_broken(pages):
    assert [found for page in pages.values() for found in findings(page)] == []


def test_annotations_select_what_there_is(pages):
    for page in pages.values():
        assert annotations(page)
        for expr in annotations(page):
            assert {selector.name for selector in selectors(expr)} <= {*CONTRACT, *OTHERS, *ALERTS}
            assert all("$job" in expr and "$instance" in expr for expr in annotations(page))


def test_thresholds_are_series_and_never_numbers_of_the_page(pages):
    """A threshold that is set for a sidecar must move its line and its colours."""
    for page in pages.values():
        for panel in panels(page):
            steps = panel.get("fieldConfig", {}).get("defaults", {}).get("thresholds", {}).get("steps", [])
            assert [step for step in steps if step["value"] is not None] == [], panel["title"]
        drawn = [
            one.matchers for query in queries(page) for one in selectors(query.expr) if one.name == "specdec_threshold"
        ]
        assert {value for found in drawn for name, _, value in found if name == "name"} <= set(Thresholds.model_fields)


def expr(old, new):
    def change(page):
        for panel in panels(page):
            for target in panel.get("targets", ()):
                if old in target["expr"]:
                    target["expr"] = target["expr"].replace(old, new)
                    return
        raise AssertionError(old)

    return change


def first(**changes):
    """Changes of the first panel that has queries."""

    def change(page):
        panel = next(panel for panel in panels(page) if "targets" in panel)
        for name, value in changes.items():
            panel.pop(name) if value is None else panel.update({name: value})

    return change


def variable(which, **changes):
    def change(page):
        next(one for one in page["templating"]["list"] if one["name"] == which).update(changes)

    return change


MUTATIONS = [
    ("uneditable-dashboard", lambda page: page.update(editable=True)),
    ("stable-uid", lambda page: page.update(uid="")),
    ("template-datasource-rule", variable("datasource", name="source")),
    ("template-job-rule", variable("job", multi=False)),
    ("template-instance-rule", variable("instance", allValue=".*")),
    ("template-on-time-change-reload-rule", variable("model_name", refresh=1)),
    ("panel-title-description-rule", first(description="")),
    ("description-says-how-to-read-and-what-to-do", first(description="All is told.")),
    ("panel-datasource-rule", first(datasource={"type": "prometheus", "uid": "abc"})),
    ("panel-units-rule", first(fieldConfig={"defaults": {}, "overrides": []})),
    ("panel-no-targets-rule", first(targets=[])),
    ("target-promql-rule", expr("sum by (", "sum by ((")),
    ("metric-of-the-contract", expr("specdec_engine_drafts_total", "specdec_engine_draft_total")),
    ("target-job-rule", expr('job=~"$job"', 'job="$job"')),
    ("target-instance-rule", expr('instance=~"$instance", ', "")),
    ("target-namespace-rule", expr('namespace=~"$namespace", ', "")),
    ("template-pod-rule", variable("pod", allValue=".+")),
    ("target-instance-rule", expr('instance=~"$instance|"', 'instance=~"$instance"')),
    ("target-model_name-rule", expr(', model_name=~"$model_name"', "")),
    ("target-temperature-rule", expr(', temperature=~"$temperature"', "")),
    ("target-rate-interval-rule", expr("[$__rate_interval]", "[5m]")),
    ("target-counter-agg-rule", expr("rate(", "max_over_time(")),
    ("unique-ids", first(id=0)),
    ("unique-titles", first(title="Alerts firing")),
    ("within-the-grid", first(gridPos={"x": 20, "y": 0, "w": 6, "h": 3})),
    ("no-overlap", first(gridPos={"x": 0, "y": 1, "w": 6, "h": 3})),
]


@pytest.mark.parametrize(
    ("rule", "change"), MUTATIONS, ids=[f"{index}-{rule}" for index, (rule, _) in enumerate(MUTATIONS)]
)
def test_a_broken_page_breaks_its_rule(rule, change, pages):
    page = copy.deepcopy(pages["specdec-operator"])
    change(page)
    assert rule in {found for found, _ in findings(page)}
