"""Runbooks, and the configuration of Alertmanager."""

import json
import re
import subprocess

import pytest

from scripts.alert_texts import alert_rules
from sidecar.alerting.rule import filled
from sidecar.settings.groups import NOT_SETTINGS, Thresholds, keys, variable
from tests.alerts.notified import CONFIG, configuration, matches
from tests.alerts.scene import RULES, assert_valid

RUNBOOKS = RULES / "runbooks"
PAGES = sorted(RUNBOOKS.glob("*.md"))
PANELS = {
    title
    for path in (RULES.parent / "dashboards").glob("specdec-*.json")
    for title in re.findall(r'^ +"title": "(.+)"', path.read_text(), re.MULTILINE)
}
ALERTS = list(alert_rules())
MORE = ["What it means", "Check first"]
LED_TO = "Findings that lead here"


def test_each_alert_has_a_runbook_and_each_runbook_an_alert():
    names = {alert.name for alert in ALERTS}
    assert {page.stem for page in PAGES} == names, "write alerts/runbooks/NAME.md for each"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_runbook_has_its_sections_severity_and_panels(page):
    """In this order, since at night nobody searches; the panels that it names exist."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    *sections, last = headings if headings[-1] == LED_TO else [*headings, LED_TO]
    assert last == LED_TO
    assert sections == [page.stem, "What to do", "When to ignore it", "More", *MORE]
    severity = next(alert.labels["severity"] for alert in ALERTS if alert.name == page.stem)
    assert f"Severity: {severity}." in text
    for title in re.findall(r"[Pp]anel\s+\*([^*]+)\*", text):
        assert " ".join(title.split()) in PANELS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_runbooks_first_ten_lines_say_what_to_do_now(page):
    """The first step is whole, and the list of remedies begins."""
    lines = page.read_text().splitlines()

    assert lines[2].startswith("**First**")
    assert "## What to do" in lines[3:10]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_runbook_has_under_250_words_before_what_explains(page):
    before, _, more = page.read_text().partition("\n## More\n")

    assert more
    assert len(before.split()) < 250


def test_the_pages_and_folders_that_runbooks_name_exist():
    text = "".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"\b(?:docs|deploy)/[\w./-]*\w", text))

    assert {"docs/restarts.md", "deploy/rollouts"} <= named
    assert [path for path in named if not (RULES.parent / path).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, RULES / "README.md"], ids=lambda page: page.stem)
def test_the_links_and_settings_of_a_runbook_exist(page):
    """A dead link is worse than none at night."""
    text = page.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (page.parent / target).is_file(), target
    for name in re.findall(r"`thresholds\.(\w+)`", text):
        assert name in Thresholds.model_fields, name
    for name in re.findall(r"\bSPECDEC_[A-Z_]+[A-Z]", text):
        assert name in NOT_SETTINGS.union(map(variable, keys())), name


def test_the_readme_shows_a_notification_as_it_is_sent():
    """Someone who decides by it whether to be paged sees the alert's own words."""
    page = " ".join((RULES / "README.md").read_text().split())
    critical = next(
        alert
        for alert in ALERTS
        if alert.name == "SpecDecodeAcceptanceLow" and alert.labels["severity"] == "critical"
    )
    labels = {"model_name": "qwen3-8b", "instance": "10.4.7.21:9911"}
    summary = filled(critical.summary, labels, 0.396)
    description = filled(critical.description, labels, 0.396)

    assert f"{summary} since 03:12 UTC, llm/vllm-7d9c4bf6c5-x2x9z. First: {critical.first}" in page
    assert " ".join(description.split()) in page


@pytest.mark.servers
def test_the_queries_of_runbooks_are_valid(tmp_path):
    """As rules, since promtool has no other way to parse an expression without a server."""
    queries = [
        query
        for page in PAGES
        for query in re.findall(r"```promql\n(.+?)```", page.read_text(), re.DOTALL)
    ]
    assert len(queries) >= len(PAGES)
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    assert_valid(tmp_path, rules)


def amtool(*arguments):
    return subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)


def rendered(directory, status="firing", annotations=None, alerts=1, **labels):
    """The title and the text of one notification of some alerts, as lines."""
    group = {"alertname": "SpecDecodeAcceptanceLow", "namespace": "llm"}
    annotations = annotations or {
        "summary": "m: low acceptance rate",
        "first": "specdec-sidecar report",
        "description": "It loses.",
        "context": "Acceptance 45%.",
        "runbook_url": "https://r.example/Low.md",
    }
    times = {"startsAt": "2026-11-21T03:12:07.5+01:00", "endsAt": "2026-11-21T03:40:00+01:00"}
    data = {
        "status": status,
        "groupLabels": group,
        "commonLabels": group | labels,
        "alerts": [{"status": status, "labels": group | labels, "annotations": annotations} | times]
        * alerts,
    }
    path = directory / "data.json"
    path.write_text(json.dumps(data))
    text = '{{ template "specdec.title" . }}\n{{ template "specdec.text" . }}'
    done = amtool(
        "template", "render", f"--template.glob={CONFIG.parent}/templates/*.tmpl",
        f"--template.text={text}", f"--template.data={path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    title, *lines = done.stdout.splitlines()
    return title, [line.strip() for line in lines if line.strip()]


@pytest.mark.servers
def test_a_notification_has_the_text_the_numbers_the_labels_and_the_runbook(tmp_path):
    alert = {
        "cluster": "eu",
        "pod": "vllm-7d9c4b-x2x9z",
        "instance": "10.1.2.3:9911",
        "model_name": "m",
    }
    title, text = rendered(tmp_path, **alert, severity="critical")
    where = "eu/llm/vllm-7d9c4b-x2x9z"
    first = "First: specdec-sidecar report"
    assert title == f"m: low acceptance rate since 02:12 UTC, {where}. {first}"
    assert text == [
        "It loses.",
        "Runbook: https://r.example/Low.md",
        "Acceptance 45%.",
        "Firing since 2026-11-21 02:12 UTC",
        (
            "cluster=eu namespace=llm pod=vllm-7d9c4b-x2x9z instance=10.1.2.3:9911 model=m"
            " severity=critical"
        ),
    ]


@pytest.mark.servers
def test_a_resolved_notification_says_how_long_it_fired(tmp_path):
    title, text = rendered(tmp_path, status="resolved")
    assert title == "[resolved] m: low acceptance rate since 02:12 UTC, llm"
    assert text[3] == "Fired from 2026-11-21 02:12 UTC to 2026-11-21 02:40 UTC"


@pytest.mark.servers
def test_of_a_long_pods_name_the_title_has_the_end(tmp_path):
    """So that the first action is within what a phone shows."""
    pod = "vllm-qwen3-32b-instruct-decode-7d9f8b6c5d-x2x9z"
    title, _ = rendered(tmp_path, cluster="eu-1", pod=pod)
    assert "eu-1/llm/…c5d-x2x9z. First: specdec-sidecar report" in title
    assert len(title) < 120


@pytest.mark.servers
def test_numbers_of_one_pod_are_told_once(tmp_path):
    """Two temperatures of it fire together, and Slack folds long texts."""
    _, text = rendered(tmp_path, alerts=2)
    assert (text.count("It loses."), text.count("Acceptance 45%.")) == (2, 1)


PAGING = [alert for alert in ALERTS if alert.labels["severity"] == "critical"]


@pytest.mark.servers
@pytest.mark.parametrize("alert", PAGING, ids=lambda alert: alert.name)
@pytest.mark.parametrize(
    ("model", "pod"),
    [
        ("Qwen/Qwen3-32B", "vllm-7d9c4bf6c5-x2x9z"),
        (
            "meta-llama/Llama-4-Maverick-17B-128E-FP8",
            "vllm-llama-4-maverick-17b-128e-fp8-decode-5f7c9d8b6-x2x9z",
        ),
    ],
    ids=["short", "long"],
)
def test_a_page_says_what_where_since_when_and_what_to_do_in_120_characters(
    alert, model, pod, tmp_path
):
    """What a phone at night shows; that is PagerDuty's summary, Slack's title, e-mail's subject.

    The labels are those that the alert has.
    """
    labels = {"alertname": alert.name, **alert.labels, "cluster": "eu", "namespace": "llm"}
    of_pod = "{instance}" in alert.description
    if of_pod:
        labels |= {"pod": pod, "instance": "10.4.7.21:9911"}
    if "model_name" in alert.summary:
        labels["model_name"] = model
    annotations = {
        "summary": filled(alert.summary, labels, 0.4),
        "description": filled(alert.description, labels, 0.4),
        "first": alert.first,
    }
    title, text = rendered(tmp_path, annotations=annotations, **labels)

    short = annotations["summary"].rpartition("/")[-1]
    end = pod if len(pod) < 25 else f"…{pod[-9:]}"
    where = f"eu/llm/{end}" if of_pod else "eu/llm"
    assert title == f"{short} since 02:12 UTC, {where}. First: {alert.first}"
    assert len(title) <= 120, len(title)
    assert text[0] == annotations["description"]


def test_each_receiver_of_pages_shows_the_same_line():
    """PagerDuty, Slack and e-mail, by the shipped configuration."""
    receivers = {receiver["name"]: receiver for receiver in configuration()["receivers"]}
    (pagerduty,) = receivers["pagerduty"]["pagerduty_configs"]
    (slack,) = receivers["slack"]["slack_configs"]
    (email,) = receivers["email"]["email_configs"]
    shown = pagerduty["description"], slack["title"], email["headers"]["Subject"]
    told = pagerduty["details"]["alerts"], slack["text"], email["text"]

    assert set(shown) == {'{{ template "specdec.title" . }}'}
    assert set(told) == {'{{ template "specdec.text" . }}'}


@pytest.mark.servers
def test_an_outage_of_several_models_is_one_group_and_what_speculation_costs_is_not():
    """By namespace; amtool names the receiver, the route's own list the group."""
    assert "model_name" not in configuration()["route"]["group_by"]
    routes = configuration()["route"]["routes"]
    (outage,) = [route for route in routes if 'scope="outage"' in route["matchers"]]
    assert "group_by" not in outage
    assert outage["receiver"] == "pagerduty"
    others = [
        route
        for route in routes
        if route is not outage and route["receiver"] in {"pagerduty", "slack"}
    ]
    assert others
    assert all("model_name" in route["group_by"] for route in others)


@pytest.mark.servers
def test_the_dead_mans_switch_reaches_its_own_receiver_only():
    labels = ["alertname=SpecDecodeDeadMansSwitch", "severity=info", "scope=switch"]
    done = amtool("config", "routes", "test", f"--config.file={CONFIG}", *labels)
    assert done.stdout.strip() == "dead-mans-switch"


@pytest.mark.servers
@pytest.mark.parametrize(
    ("severity", "receiver"), [("critical", "pagerduty"), ("warning", "slack"), ("info", "nobody")]
)
def test_each_severity_reaches_its_receiver(severity, receiver):
    labels = ["alertname=SpecDecodeAcceptanceLow", f"severity={severity}"]
    done = amtool("config", "routes", "test", f"--config.file={CONFIG}", *labels)
    assert done.stdout.strip() == f"webhook,{receiver}"


def _labels(alert):
    return {"alertname": alert.name, **alert.labels}


def inhibited_by(source):
    """The scopes of the alerts that one with the labels ``source`` inhibits."""
    rules = configuration()["inhibit_rules"]
    alert, *_ = [alert for alert in ALERTS if source.items() <= _labels(alert).items()]
    targets = [
        rule["target_matchers"]
        for rule in rules
        if matches(rule["source_matchers"], _labels(alert))
    ]
    return {
        other.labels["scope"]
        for other in ALERTS
        if any(matches(target, _labels(other)) for target in targets)
    }


SCOPES = {alert.labels["scope"] for alert in ALERTS}
OTHER_MATTERS = {"sidecar", "vllm", "outage", "restarts", "own", "fleet", "switch"}


@pytest.mark.parametrize(
    ("source", "explained"),
    [
        (
            {"alertname": "SpecDecodeSidecarAbsent"},
            SCOPES - {"sidecar", "vllm", "outage", "switch"},
        ),
        ({"alertname": "SpecDecodeSidecarUnscraped"}, set()),
        ({"scope": "outage", "severity": "critical"}, {"vllm"}),
        ({"scope": "outage", "severity": "warning"}, set()),
        ({"scope": "vllm", "severity": "critical"}, SCOPES - OTHER_MATTERS | {"sidecar"}),
        (
            {"alertname": "SpecDecodeVLLMDown", "severity": "warning"},
            SCOPES - OTHER_MATTERS | {"sidecar"},
        ),
        ({"alertname": "SpecDecodeVLLMNeverUp"}, SCOPES - OTHER_MATTERS),
        ({"scope": "fault"}, SCOPES - OTHER_MATTERS - {"fault", "load", "polls", "plugin"}),
        ({"scope": "model", "severity": "info"}, {"temperature", "requests"}),
        ({"scope": "model", "severity": "critical"}, {"temperature", "requests", "change"}),
        ({"scope": "temperature"}, {"requests"}),
        ({"scope": "model_time"}, {"temperature_time"}),
        ({"scope": "fleet"}, set()),
    ],
    ids=lambda labels: " ".join(sorted(labels.values())) if isinstance(labels, dict) else "",
)
def test_an_alert_inhibits_what_it_explains_and_nothing_else(source, explained):
    """By scope, so that a new alert needs no line here; a new scope does."""
    assert inhibited_by(source) == explained


def test_what_a_fault_explains_ends_before_it():
    """Otherwise it would be sent for a recovered pod when the page resolves."""
    keep = {alert.labels["scope"]: alert.keep for alert in reversed(ALERTS)}
    assert keep["fault"] > keep["model"]


def test_alertmanagers_configuration_has_no_secret_but_files():
    """It is a file of this repository that people copy."""
    text = CONFIG.read_text()
    assert (
        len(re.findall(r"^ +(?:- )?(routing_key|api_url|credentials)_file: /", text, re.MULTILINE))
        == 3
    )
    assert not re.search(r"(routing_key|api_url|credentials|password):", text)
