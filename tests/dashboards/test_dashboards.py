"""The committed dashboards keep the rules of Grafana's linter and ours, and their links are good.

What a link leads to is there.
"""

import json
import re

import yaml

from sidecar.findings.catalog import BY_CODE
from sidecar.settings.groups import Thresholds
from tests.dashboards.dashboard_lint import ALERTS, OTHERS, RECORDED, findings
from tests.dashboards.dashboard_tools import (
    CONTRACT,
    PAGES,
    ROOT,
    annotations,
    panels,
    queries,
    selectors,
)

BUILTIN = {"__url_time_range", "__value", "__data"}


def test_the_dashboards_keep_every_rule():
    """`dashboard_lint.py` has them, each with its reason."""
    assert set(PAGES) == {"specdec-operator", "specdec-fleet"}
    assert [finding for page in PAGES.values() for finding in findings(page)] == []


def test_annotations_select_metrics_that_exist():
    for page in PAGES.values():
        assert annotations(page)
        for expr in annotations(page):
            names = {selector.name for selector in selectors(expr)}
            assert names <= {*CONTRACT, *OTHERS, *RECORDED, *ALERTS}
            assert names <= RECORDED or {"$job", "$instance"} <= set(re.findall(r"\$\w+", expr))


def test_thresholds_are_series_and_never_numbers_of_the_page():
    """A threshold that is set for a sidecar must move its line and its colours."""
    for page in PAGES.values():
        for panel in panels(page):
            steps = (
                panel.get("fieldConfig", {})
                .get("defaults", {})
                .get("thresholds", {})
                .get("steps", [])
            )
            assert [step for step in steps if step["value"] is not None] == [], panel["title"]
        drawn = [
            selector.matchers
            for query in queries(page)
            if "specdec_threshold" in query.expr  # to parse the others takes seconds
            for selector in selectors(query.expr)
            if selector.name == "specdec_threshold"
        ]
        assert {
            value for matchers in drawn for name, _, value in matchers if name == "name"
        } <= set(Thresholds.model_fields)


def variables(page):
    return {variable["name"]: variable for variable in page["templating"]["list"]}


def test_every_variable_is_used():
    """One that does nothing looks broken to who selects it."""
    for page in PAGES.values():
        everything = json.dumps([page["panels"], page["links"], page["templating"]["list"]])
        unused = [name for name in variables(page) if not re.search(rf"\$\{{?{name}\b", everything)]
        assert unused == []


def test_an_alert_has_one_marker_on_however_many_pods_it_fires():
    """Two hundred pods would draw two hundred lines."""
    for page in PAGES.values():
        assert annotations(page)[0].startswith("group by (alertname, severity) ((ALERTS{")


def test_runbooks_are_where_the_rules_record_them():
    rules = yaml.safe_load((ROOT / "alerts" / "recording.yaml").read_text())
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"]}
    for page in PAGES.values():
        assert (
            re.fullmatch(r"label_values\((.+), runbooks\)", variables(page)["runbooks"]["query"])[1]
            in recorded
        )


def test_the_provisioned_prometheus_is_linked_to_its_alertmanager():
    path = ROOT / "dashboards" / "provisioning" / "datasources" / "prometheus.yaml"
    sources = {source["type"]: source for source in yaml.safe_load(path.read_text())["datasources"]}
    assert sources["prometheus"]["isDefault"] is True
    assert sources["prometheus"]["jsonData"]["alertmanagerUid"] == sources["alertmanager"]["uid"]


def test_a_configmap_fits_into_the_annotation_of_a_client_side_apply():
    """Which has the whole object as JSON, in 256 KiB at most."""
    path = ROOT / "deploy" / "kubernetes" / "monitoring" / "dashboards.yaml"
    for configmap in yaml.safe_load_all(path.read_text()):
        assert len(json.dumps(configmap)) < 256 * 1024, configmap["metadata"]["name"]


def data_links(panel):
    """The addresses of a panel's data links."""
    for override in panel.get("fieldConfig", {}).get("overrides", ()):
        for links in (prop["value"] for prop in override["properties"] if prop["id"] == "links"):
            yield from (link["url"] for link in links)


def test_data_links_name_dashboards_variables_and_fields_that_exist():
    """Otherwise a link opens an empty page at night."""
    for page in PAGES.values():
        for panel in panels(page):
            fields = set(
                re.findall(r"\w+", " ".join(target["expr"] for target in panel.get("targets", ())))
            )
            for url in data_links(panel):
                for uid in re.findall(r"/d/([\w-]+)", url):
                    assert set(re.findall(r"var-(\w+)=", url)) <= set(variables(PAGES[uid]))
                assert set(re.findall(r"__data\.fields\.(\w+)", url)) <= fields
                assert set(re.findall(r"\$\{(\w+)", url)) <= {*BUILTIN, *variables(page)}


def test_every_finding_has_words_that_fit_and_a_runbook_that_is_about_it():
    """They stand in a column of the fleet page, which cuts longer ones off."""
    for code, words in BY_CODE.items():
        runbook = ROOT / "alerts" / "runbooks" / f"{words.runbook}.md"
        assert f"`{code}`: {words.why}" in runbook.read_text(), "run scripts/docs"
        assert len(f"{words.why}: {words.remedy}") * 7 <= 580  # pixels of the fleet's column


def test_each_dashboard_links_to_the_other_with_its_variables_and_time():
    """So the other one opens on the same pods and the same hour."""
    for page in PAGES.values():
        [other] = [link for link in page["links"] if link["type"] == "dashboards"]
        assert all(set(other["tags"]) <= set(each["tags"]) for each in PAGES.values())
        assert (other["includeVars"], other["keepTime"]) == (True, True)


def test_a_dashboard_is_imported_without_a_question():
    """The data source is a variable of the page, which needs no input."""
    for page in PAGES.values():
        assert page["__inputs"] == []
        assert {requirement["id"] for requirement in page["__requires"]} == {
            "grafana",
            "prometheus",
        }
