"""Runbooks, and the configuration of Alertmanager."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sidecar.alerting.rules import load_rules
from sidecar.settings.groups import Thresholds
from sidecar.settings.tree import keys, variable
from tests.alerts.scene import RULES, shipped

RUNBOOKS = RULES / "runbooks"
PAGES = sorted(RUNBOOKS.glob("*.md"))
CONFIG = RULES / "alertmanager" / "alertmanager.yaml"
DASHBOARDS = RULES.parent / "dashboards"
ALERTS = list(load_rules().values())


def test_each_alert_has_its_page_and_each_page_its_alert():
    assert {page.stem for page in PAGES} == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_says_what_someone_at_night_needs(page):
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert headings == [page.stem, "What it means", "Look first", "Do", "Ignore it when"]
    severity = next(alert.labels["severity"] for alert in ALERTS if alert.name == page.stem)
    assert f"Severity: {severity}." in text


def test_the_readme_has_every_alert():
    rows = re.findall(r"^\| (critical|warning|info) \| ([^|]+) \|$", (RULES / "README.md").read_text(), re.MULTILINE)
    listed = {(f"SpecDecode{name.split()[0]}", severity) for severity, names in rows for name in names.split(", ")}
    assert listed == {(alert.name, alert.labels["severity"]) for alert in ALERTS}


def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
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
        assert name in set(map(variable, keys())), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_panels_are_on_a_dashboard(page):
    panels = [panel for path in DASHBOARDS.glob("specdec-*.json") for panel in json.loads(path.read_text())["panels"]]
    titles = {one["title"] for panel in panels for one in [panel, *panel.get("panels", [])]}
    for title in re.findall(r"[Pp]anel\s+\*([^*]+)\*", page.read_text()):
        assert " ".join(title.split()) in titles


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
    # The check itself can fail: it notices a missing template.
    shutil.copy(CONFIG, tmp_path)
    shutil.copytree(CONFIG.parent / "templates", tmp_path / "templates")
    template = tmp_path / "templates" / "specdec.tmpl"
    template.write_text(template.read_text().replace("{{ end }}", "", 1))
    assert amtool("check-config", str(tmp_path / CONFIG.name)).returncode != 0


def rendered(directory, *alerts, status="firing"):
    """The title and the text of one notification, as lines; each alert is its labels, and all have a namespace."""
    labels = [{"alertname": "SpecDecodeAcceptanceLow", "namespace": "llm"} | alert for alert in alerts]
    common = dict(set.intersection(*(set(one.items()) for one in labels)))
    annotations = {"description": "It loses.", "context": "Acceptance 45%.", "runbook_url": "https://r.example/Low.md"}
    times = {"startsAt": "2026-11-21T03:12:07.5+01:00", "endsAt": "2026-11-21T03:40:00+01:00"}
    data = {
        "status": status,
        "groupLabels": {"alertname": "SpecDecodeAcceptanceLow", "namespace": "llm"},
        "commonLabels": common,
        "commonAnnotations": {"summary": "m: speculative decoding costs more than it gives"},
        "alerts": [{"status": status, "labels": one, "annotations": annotations} | times for one in labels],
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
def test_a_page_says_what_a_person_needs_at_night(tmp_path):
    alert = {"cluster": "eu", "pod": "vllm-7d9c4b-x2x9z", "instance": "10.1.2.3:9911", "model_name": "m"}
    title, text = rendered(tmp_path, alert | {"severity": "critical"})
    where = "in eu in llm, pod vllm-7d9c4b-x2x9z"
    assert title == f"[1] m: speculative decoding costs more than it gives {where}"
    assert text == [
        "It loses.",
        "Acceptance 45%.",
        "Firing since 2026-11-21 02:12 UTC",
        "cluster=eu namespace=llm pod=vllm-7d9c4b-x2x9z instance=10.1.2.3:9911 model=m severity=critical",
        "Runbook: https://r.example/Low.md",
    ]


@pytest.mark.servers
def test_a_resolved_page_says_how_long_it_fired(tmp_path):
    title, text = rendered(tmp_path, {}, status="resolved")
    assert title == "[resolved] m: speculative decoding costs more than it gives in llm"
    assert text[2] == "Fired from 2026-11-21 02:12 UTC to 2026-11-21 02:40 UTC"


@pytest.mark.servers
@pytest.mark.parametrize(
    ("severity", "receiver"), [("critical", "pagerduty"), ("warning", "slack"), ("info", "nobody")]
)
def test_each_severity_reaches_its_receiver(severity, receiver):
    labels = ["alertname=SpecDecodeAcceptanceLow", f"severity={severity}"]
    done = amtool("config", "routes", "test", f"--config.file={CONFIG}", *labels)
    assert done.stdout.strip() == f"webhook,{receiver}"


def held_back(name, severity=None):
    """The alerts that this one inhibits."""
    source = next(one for one in ALERTS if one.name == name and severity in {None, one.labels["severity"]})
    found = set()
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        if all(matches(one, {"alertname": name, **source.labels}) for one in rule["source_matchers"]):
            for alert in ALERTS:
                if all(matches(one, {"alertname": alert.name, **alert.labels}) for one in rule["target_matchers"]):
                    found.add(alert.name)
    return {one.removeprefix("SpecDecode") for one in found}


PARTS = {"AcceptanceLowAtTemperature", "AcceptanceP10Low", "MixedWorkload"}


def test_what_a_page_holds_back_ends_with_it():
    """Otherwise it would be sent for a recovered pod when the page resolves."""
    rules = {rule["alert"]: rule for rule in shipped() if "alert" in rule}
    for name in PARTS | {"AcceptanceRegressed"}:
        assert "pod:specdec_acceptance_low:ended15m" in rules[f"SpecDecode{name}"]["expr"]
        assert "keep_firing_for" not in rules[f"SpecDecode{name}"]
    # The fault's page ends after those that it explains.
    assert rules["SpecDecodeAcceptanceCollapsed"]["keep_firing_for"] == "10m"
    assert rules["SpecDecodeAcceptanceLow"]["keep_firing_for"] == "5m"
    assert rules["SpecDecodeEventsDropped"]["expr"].endswith("pod:specdec_vllm_down:ended6m")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.labels['severity']}")
def test_no_alert_holds_itself_back(alert):
    assert alert.name.removeprefix("SpecDecode") not in held_back(alert.name, alert.labels["severity"])


def test_what_explains_others_holds_them_back():
    everything = {alert.name.removeprefix("SpecDecode") for alert in ALERTS}
    own = {"VLLMDown", "VLLMNeverUp", "VLLMRestarting", "SidecarAbsent", "SidecarFailing", "PushRefused"}
    fleet = {"RulesFailing", "NetNegative", "AcceptanceLowAcrossPods"}
    assert held_back("SpecDecodeVLLMDown") == held_back("SpecDecodeVLLMNeverUp") == everything - own - fleet
    assert held_back("SpecDecodeSidecarAbsent") == everything - {"SidecarAbsent"}
    assert held_back("SpecDecodeAcceptanceLow", "info") == PARTS
    assert held_back("SpecDecodeAcceptanceLow", "critical") == PARTS | {"AcceptanceRegressed"}
    time = {"SlowerThanPlain", "SlowerThanPlainAtTemperature"}
    fault = PARTS | time | {"AcceptanceLow", "AcceptanceRegressed", "BreakEven", "Stopped", "NotJudged"}
    assert held_back("SpecDecodeAcceptanceCollapsed") == fault
    assert held_back("SpecDecodeSlowerThanPlain") == {"SlowerThanPlainAtTemperature"}
    assert held_back("SpecDecodeAcceptanceLowAtTemperature") == {"AcceptanceP10Low", "MixedWorkload"}


def test_every_scope_is_known_to_the_configuration_or_explained_by_nothing():
    named = " ".join(re.findall(r"scope[!=~]+\"([^\"]+)", CONFIG.read_text()))
    scopes = {alert.labels["scope"] for alert in ALERTS}
    patterns = re.split(r"[ |]", named)
    alone = {one for one in scopes if not any(re.fullmatch(pattern, one) for pattern in patterns)}
    assert alone == {"fleet", "restarts", "own"}


def matches(matcher, labels):
    name, operator, value = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.+)"', matcher).groups()
    found = labels.get(name, "")
    hit = bool(re.fullmatch(value, found)) if "~" in operator else value == found
    return hit != operator.startswith("!")


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
