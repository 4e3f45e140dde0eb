"""Runbooks, and the configuration of Alertmanager."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sidecar.alerting.rules import load_rules
from sidecar.analysis.limitation import EXPLANATIONS, Limitation
from sidecar.settings.groups import Thresholds
from sidecar.settings.tree import leaves
from tests.alerts.alert_tools import RULES

RUNBOOKS = RULES / "runbooks"
PAGES = sorted(RUNBOOKS.glob("*.md"))
CONFIG = RULES / "alertmanager" / "alertmanager.yaml"
DASHBOARDS = RULES.parent / "dashboards"
RECORDED = RULES.parent / "tests" / "data" / "pages"
ALERTS = list(load_rules().values())


def test_each_alert_has_its_page_and_each_page_its_alert():
    assert {page.stem for page in PAGES} == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_says_what_someone_at_night_needs(page):
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert headings == [page.stem, "What it means", "Look first", "Do", "Ignore it when"]
    severity = next(alert.severity for alert in ALERTS if alert.name == page.stem)
    assert f"Severity: {severity}." in text


def anchors(path):
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, RULES / "README.md"], ids=lambda page: page.stem)
def test_links_and_settings_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert (page.parent / path).is_file(), target
        assert not anchor or anchor in anchors(page.parent / path), target
    for name in re.findall(r"`thresholds\.(\w+)`", text):
        assert name in Thresholds.model_fields, name
    for name in re.findall(r"\bSPECDEC_[A-Z_]+[A-Z]", text):
        assert name in {leaf.variable for leaf in leaves()}, name


def test_the_runbook_on_lost_events_leads_to_the_reasons():
    text = (RUNBOOKS / "SpecDecodeEventsDropped.md").read_text()
    assert "](../../docs/metrics.md#why-request-events-are-dropped)" in text
    for named in ("request_too_large", "reply_too_large", "proxy.observe_bytes"):
        assert f"`{named}`" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_panels_are_on_a_dashboard(page):
    panels = [panel for path in DASHBOARDS.glob("specdec-*.json") for panel in json.loads(path.read_text())["panels"]]
    titles = {one["title"] for panel in panels for one in [panel, *panel.get("panels", [])]}
    for title in re.findall(r"[Pp]anel\s+\*([^*]+)\*", page.read_text()):
        assert " ".join(title.split()) in titles


@pytest.mark.parametrize(
    "advice",
    [EXPLANATIONS[Limitation.V0_COUNTERS], (RUNBOOKS / "SpecDecodeNotJudged.md").read_text()],
    ids=["limitation", "runbook"],
)
def test_no_version_is_advised_that_still_has_the_v0_engine(advice):
    recorded = (re.match(r"vllm-(\d+)\.(\d+).*-v0", path.name) for path in RECORDED.iterdir())
    newest = max((int(found[1]), int(found[2])) for found in recorded if found)
    advised = re.search(r"vLLM (\d+)\.(\d+) or\s+later, or `?VLLM_USE_V1=1", advice)
    assert (int(advised[1]), int(advised[2])) == (newest[0], newest[1] + 1)


@pytest.mark.servers
def test_queries_are_sound(tmp_path):
    """As rules, since promtool has no other way to parse an expression without a server."""
    queries = [query for page in PAGES for query in re.findall(r"```promql\n(.+?)```", page.read_text(), re.DOTALL)]
    assert len(queries) >= len(PAGES)
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "queries.yaml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def amtool(*arguments):
    return subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.servers
def test_alertmanager_takes_the_configuration(tmp_path):
    done = amtool("check-config", str(CONFIG))
    assert done.returncode == 0, done.stdout + done.stderr
    # The check itself can fail: a template that is not there is noticed.
    shutil.copy(CONFIG, tmp_path)
    shutil.copytree(CONFIG.parent / "templates", tmp_path / "templates")
    template = tmp_path / "templates" / "specdec.tmpl"
    template.write_text(template.read_text().replace("{{ end }}", "", 1))
    assert amtool("check-config", str(tmp_path / CONFIG.name)).returncode != 0


def rendered(directory, *alerts):
    """The title and the text of one notification, as lines; each alert is its labels, and all have a namespace."""
    labels = [{"alertname": "SpecDecodeVLLMDown", "namespace": "llm"} | alert for alert in alerts]
    common = dict(set.intersection(*(set(one.items()) for one in labels)))
    data = {
        "status": "firing",
        "groupLabels": {"alertname": "SpecDecodeVLLMDown", "namespace": "llm"},
        "commonLabels": common,
        "commonAnnotations": {"summary": "vLLM does not answer"},
        "alerts": [
            {"status": "firing", "labels": one, "annotations": {"description": "It is down."}} for one in labels
        ],
    }
    path = directory / "data.json"
    path.write_text(json.dumps(data))
    text = '{{ template "specdec.title" . }}\n{{ template "specdec.text" . }}'
    done = amtool(
        "template", "render", f"--template.glob={CONFIG.parent}/templates/*.tmpl", f"--template.text={text}",
        f"--template.data={path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    title, *lines = done.stdout.splitlines()
    return title, [line.strip() for line in lines if line.strip()]


@pytest.mark.servers
def test_a_page_names_the_pod_and_the_vllm(tmp_path):
    alert = {"pod": "vllm-7d9c4b-x2x9z", "target": "b", "severity": "critical"}
    title, text = rendered(tmp_path, alert)
    assert title == "[1] vLLM does not answer in llm, pod vllm-7d9c4b-x2x9z, target b"
    assert text == ["It is down.", "pod=vllm-7d9c4b-x2x9z target=b namespace=llm severity=critical"]


@pytest.mark.servers
def test_each_alert_of_a_page_names_its_own_pod_and_nothing_that_it_has_not(tmp_path):
    title, text = rendered(tmp_path, {"pod": "one", "severity": "critical"}, {"pod": "two"}, {})
    assert title == "[3] vLLM does not answer in llm"
    assert text[1::2] == ["pod=one namespace=llm severity=critical", "pod=two namespace=llm", "namespace=llm"]


@pytest.mark.servers
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_each_severity_reaches_its_receiver(alert):
    done = amtool(
        "config", "routes", "test", f"--config.file={CONFIG}", f"alertname={alert.name}", f"severity={alert.severity}"
    )
    expected = {"critical": "pagerduty", "warning": "slack", "info": "nobody"}[alert.severity]
    assert done.stdout.strip() == f"webhook,{expected}"


def test_inhibition_names_alerts_that_exist_and_never_the_alert_itself():
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        sources = {alert.name for alert in ALERTS if matches(rule["source_matchers"], alert)}
        targets = {alert.name for alert in ALERTS if matches(rule["target_matchers"], alert)}
        assert sources
        assert targets
        assert not sources & targets


def test_what_explains_others_holds_them_back():
    rules = yaml.safe_load(CONFIG.read_text())["inhibit_rules"]

    def held_back(name):
        by = next(alert for alert in ALERTS if alert.name == name)
        found = [rule for rule in rules if matches(rule["source_matchers"], by)]
        return {alert.name for rule in found for alert in ALERTS if matches(rule["target_matchers"], alert)}

    everything = {alert.name for alert in ALERTS}
    assert held_back("SpecDecodeVLLMDown") == {
        name for name in everything if not name.startswith(("SpecDecodeVLLM", "SpecDecodeSidecar"))
    }
    assert held_back("SpecDecodeSidecarAbsent") == everything - {"SpecDecodeSidecarAbsent"}
    assert "SpecDecodeAcceptanceLowAtTemperature" in held_back("SpecDecodeAcceptanceLow")
    assert "SpecDecodeAcceptanceLow" not in held_back("SpecDecodeAcceptanceLowAtTemperature")


def matches(matchers, alert):
    for matcher in matchers:
        operator, value = re.fullmatch(r'alertname(=|=~|!=|!~)"(.+)"', matcher).groups()
        hit = bool(re.fullmatch(value, alert.name)) if "~" in operator else value == alert.name
        if hit == operator.startswith("!"):
            return False
    return True


def test_secrets_are_files():
    text = CONFIG.read_text()
    receivers = yaml.safe_load(text)["receivers"]
    (pagerduty,) = next(one for one in receivers if one["name"] == "pagerduty")["pagerduty_configs"]
    (slack,) = next(one for one in receivers if one["name"] == "slack")["slack_configs"]
    (webhook,) = next(one for one in receivers if one["name"] == "webhook")["webhook_configs"]
    assert Path(pagerduty["routing_key_file"]).is_absolute()
    assert Path(slack["api_url_file"]).is_absolute()
    assert Path(webhook["http_config"]["authorization"]["credentials_file"]).is_absolute()
    assert not re.search(r"(routing_key|api_url|credentials|password):", text)
