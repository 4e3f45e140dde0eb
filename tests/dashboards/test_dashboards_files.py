"""The committed JSON is what the builders make, and the other ways to provision it contain the same."""

import re

import pytest
import yaml

from tests.dashboards.dashboard_tools import ROOT, panels


@pytest.fixture
def builders():
    from dashboards.builders import output

    return output


def test_committed_json_is_what_the_builders_make(builders):
    made = builders.files()
    committed = {path.name: path.read_text() for path in (ROOT / "dashboards").glob("*.json")}
    assert committed.keys() == made.keys()
    for name, text in made.items():
        assert committed[name] == text, "run scripts/dashboards and commit what it changed"


def test_runbooks_are_where_the_rules_record_them(pages):
    rules = yaml.safe_load((ROOT / "alerts" / "recording.yaml").read_text())
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"]}
    for page in pages.values():
        (variable,) = [one for one in page["templating"]["list"] if one["name"] == "runbooks"]
        series = re.fullmatch(r"label_values\((.+), runbooks\)", variable["query"])[1]
        assert series in recorded


def test_provisioning_names_what_the_dashboards_need():
    folder = ROOT / "dashboards" / "provisioning"
    sources = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    by_type = {source["type"]: source for source in sources}
    assert by_type["prometheus"]["isDefault"] is True
    assert by_type["prometheus"]["jsonData"]["alertmanagerUid"] == by_type["alertmanager"]["uid"]
    assert re.fullmatch(r"\d+s", by_type["prometheus"]["jsonData"]["timeInterval"])
    (provider,) = yaml.safe_load((folder / "dashboards" / "specdec.yaml").read_text())["providers"]
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)


def test_links_lead_to_pages_and_variables_there_are(pages):
    """A data link to a dashboard or a variable that is not there opens an empty page at night."""
    links = 0
    for page in pages.values():
        variables = {one["name"] for one in page["templating"]["list"]}
        for panel in panels(page):
            fields = set(re.findall(r"\w+", " ".join(target["expr"] for target in panel.get("targets", ()))))
            for override in panel.get("fieldConfig", {}).get("overrides", ()):
                for link in (
                    one for found in override["properties"] if found["id"] == "links" for one in found["value"]
                ):
                    links += 1
                    for uid in re.findall(r"/d/([\w-]+)", link["url"]):
                        assert uid in pages
                        of_target = {one["name"] for one in pages[uid]["templating"]["list"]}
                        assert set(re.findall(r"var-(\w+)=", link["url"])) <= of_target
                    assert set(re.findall(r"__data\.fields\.(\w+)", link["url"])) <= fields
                    builtin = {"__url_time_range", "__value", "__data"}
                    assert set(re.findall(r"\$\{(\w+)", link["url"])) - builtin <= variables
    assert links >= 5
    for page in pages.values():
        (other,) = [link for link in page["links"] if link["type"] == "dashboards"]
        assert all(set(other["tags"]) <= set(one["tags"]) for one in pages.values())
        assert (other["includeVars"], other["keepTime"]) == (True, True)


def test_first_screen_answers_before_any_scrolling(pages):
    """Whether it pays, where not, since when and what fires are visible without scrolling, in an open row."""
    for uid, titles in {
        "specdec-operator": {"Does speculation pay?", "Where it loses", "Alerts firing", "Is this page live?"},
        "specdec-fleet": {
            "Pods losing",
            "vLLMs down",
            "Alerts firing",
            "Worst verdict by model: which, and since when",
        },
    }.items():
        top = {panel["title"] for panel in pages[uid]["panels"] if panel["gridPos"]["y"] < 9}
        assert titles <= top


def test_a_file_is_imported_without_a_question(pages):
    """The data source is a variable of the page, which needs no input."""
    for page in pages.values():
        assert page["__inputs"] == []
        assert {one["id"] for one in page["__requires"]} == {"grafana", "prometheus"}
