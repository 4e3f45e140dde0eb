"""What the dashboards lead to is there, and they are provisioned and imported as they are."""

import re

import yaml

from tests.dashboards.dashboard_tools import ROOT, panels


def test_runbooks_are_where_the_rules_record_them(pages):
    rules = yaml.safe_load((ROOT / "alerts" / "recording.yaml").read_text())
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"]}
    for page in pages.values():
        (variable,) = [one for one in page["templating"]["list"] if one["name"] == "runbooks"]
        series = re.fullmatch(r"label_values\((.+), runbooks\)", variable["query"])[1]
        assert series in recorded


def test_provisioned_prometheus_knows_its_alertmanager():
    folder = ROOT / "dashboards" / "provisioning"
    sources = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    by_type = {source["type"]: source for source in sources}
    assert by_type["prometheus"]["isDefault"] is True
    assert by_type["prometheus"]["jsonData"]["alertmanagerUid"] == by_type["alertmanager"]["uid"]


def test_links_lead_to_pages_and_variables_there_are(pages):
    """A data link to a dashboard or a variable that is not there opens an empty page at night."""
    for page in pages.values():
        variables = {one["name"] for one in page["templating"]["list"]}
        for panel in panels(page):
            fields = set(re.findall(r"\w+", " ".join(target["expr"] for target in panel.get("targets", ()))))
            for override in panel.get("fieldConfig", {}).get("overrides", ()):
                for link in (
                    one for found in override["properties"] if found["id"] == "links" for one in found["value"]
                ):
                    for uid in re.findall(r"/d/([\w-]+)", link["url"]):
                        assert uid in pages
                        of_target = {one["name"] for one in pages[uid]["templating"]["list"]}
                        assert set(re.findall(r"var-(\w+)=", link["url"])) <= of_target
                    assert set(re.findall(r"__data\.fields\.(\w+)", link["url"])) <= fields
                    builtin = {"__url_time_range", "__value", "__data"}
                    assert set(re.findall(r"\$\{(\w+)", link["url"])) - builtin <= variables
    for page in pages.values():
        (other,) = [link for link in page["links"] if link["type"] == "dashboards"]
        assert all(set(other["tags"]) <= set(one["tags"]) for one in pages.values())
        assert (other["includeVars"], other["keepTime"]) == (True, True)


def test_a_file_is_imported_without_a_question(pages):
    """The data source is a variable of the page, which needs no input."""
    for page in pages.values():
        assert page["__inputs"] == []
        assert {one["id"] for one in page["__requires"]} == {"grafana", "prometheus"}
