"""The rules of Grafana's linter and ours."""

from sidecar.settings.groups import Thresholds
from tests.dashboards.dashboard_lint import ALERTS, OTHERS, findings
from tests.dashboards.dashboard_tools import CONTRACT, PAGES, annotations, panels, queries, selectors


def test_the_dashboards_keep_every_rule():
    assert set(PAGES) == {"specdec-operator", "specdec-fleet"}
    assert [finding for page in PAGES.values() for finding in findings(page)] == []


def test_annotations_select_metrics_that_exist():
    for page in PAGES.values():
        assert annotations(page)
        for expr in annotations(page):
            assert {selector.name for selector in selectors(expr)} <= {*CONTRACT, *OTHERS, *ALERTS}
            assert "$job" in expr
            assert "$instance" in expr


def test_thresholds_are_series_and_never_numbers_of_the_page():
    """A threshold that is set for a sidecar must move its line and its colours."""
    for page in PAGES.values():
        for panel in panels(page):
            steps = panel.get("fieldConfig", {}).get("defaults", {}).get("thresholds", {}).get("steps", [])
            assert [step for step in steps if step["value"] is not None] == [], panel["title"]
        all_of_page = [selector for query in queries(page) for selector in selectors(query.expr)]
        drawn = [selector.matchers for selector in all_of_page if selector.name == "specdec_threshold"]
        assert {value for matchers in drawn for name, _, value in matchers if name == "name"} <= set(
            Thresholds.model_fields
        )
