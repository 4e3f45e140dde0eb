"""The catalogue's conditions over the sidecar's own state, and the text that is made of what they find."""

import pytest

from sidecar.alerting.alert import Alert, Severity, finding_annotations
from sidecar.alerting.catalogue import catalogue
from sidecar.alerting.look import Finding
from tests.alerts.alert_series import Pod
from tests.alerts.alert_state import bucket, engine
from tests.alerts.alert_tools import promtool, shipped

BASELINE = {"m": {"tpot": {0.5: 0.02, 0.99: 0.04}}}
CONDITIONS = {alert.name.removeprefix("SpecDecode"): alert.condition for alert in catalogue() if alert.condition}


def found(name, look):
    return [(dict(finding.labels), pytest.approx(finding.value)) for finding in CONDITIONS[name](look)]


M = {"model_name": "m"}
HOT = {"model_name": "m", "temperature": "1+"}

CASES = [
    # (alert, what holds, what is found)
    ("AcceptanceLow", {"engines": [engine(acceptance=0.49)]}, [(M, 0.49)]),
    ("AcceptanceLow", {"engines": [engine(acceptance=0.51)]}, []),
    ("AcceptanceLow", {"engines": [engine(acceptance=0.49, drafts=0.95)]}, []),
    ("AcceptanceLow", {"engines": [engine(acceptance=0.49, drafts=1.05)]}, [(M, 0.49)]),
    ("AcceptanceLow", {"engines": [engine(acceptance=0.45)], "acceptance_net_negative": 0.4}, []),
    (
        "AcceptanceLow",
        {"engines": [engine(acceptance=0.6, drafts=9), engine(acceptance=0.1, number="1", drafts=1)]},
        [],
    ),
    ("AcceptanceLow", {"engines": []}, []),
    ("BreakEven", {"engines": [engine(acceptance=0.49)]}, []),
    ("BreakEven", {"engines": [engine(acceptance=0.5)]}, [(M, 0.5)]),
    ("BreakEven", {"engines": [engine(acceptance=0.64)]}, [(M, 0.64)]),
    ("BreakEven", {"engines": [engine(acceptance=0.66)]}, []),
    ("AcceptanceLowAtTemperature", {"temperatures": {"0": bucket(0.8), "1+": bucket(0.49)}}, [(HOT, 0.49)]),
    ("AcceptanceLowAtTemperature", {"temperatures": {"0": bucket(0.8), "1+": bucket(0.51)}}, []),
    ("AcceptanceLowAtTemperature", {"temperatures": {"0": bucket(0.8), "1+": bucket(None)}}, []),
    ("AcceptanceLowAtTemperature", {"temperatures": {"0": bucket(0.8, 19), "1+": bucket(0.3, 1.9)}}, []),
    ("AcceptanceLowAtTemperature", {"temperatures": {"0": bucket(0.8, 18), "1+": bucket(0.3, 2.1)}}, [(HOT, 0.3)]),
    ("AcceptanceLowAtTemperature", {"temperatures": {"1+": bucket(0.3, 0.95)}}, []),
    ("AcceptanceLowAtTemperature", {"temperatures": {"1+": bucket(0.3, requests=19)}}, []),
    ("AcceptanceLowAtTemperature", {"temperatures": {"1+": bucket(0.3, requests=20)}}, [(HOT, 0.3)]),
    ("AcceptanceLowAtTemperature", {"temperatures": {"1+": bucket(0.3)}, "up": False}, []),
    ("LatencyGapWide", {"engines": [engine(tpot=(0.02, 0.051))], "baselines": BASELINE}, [(M, 1.55)]),
    ("LatencyGapWide", {"engines": [engine(tpot=(0.02, 0.049))], "baselines": BASELINE}, []),
    ("LatencyGapWide", {"engines": [engine(tpot=(0.02, 0.09), drafts=0.9)], "baselines": BASELINE}, []),
    ("LatencyGapWide", {"engines": [engine(tpot=(0.02, 0.09))]}, []),
    ("KVCachePressure", {"engines": [engine(peak=0.91, waiting=1)]}, [(M, 0.91)]),
    ("KVCachePressure", {"engines": [engine(peak=0.89, waiting=1)]}, []),
    ("KVCachePressure", {"engines": [engine(peak=0.91)]}, []),
    ("KVCachePressure", {"engines": [engine(peak=None, waiting=1)]}, []),
    ("KVCachePressure", {"engines": [engine(peak=0.3, waiting=1), engine(peak=0.95, number="1")]}, [(M, 0.95)]),
    ("CoverageLow", {"engines": [engine()], "coverage": 0.79}, [(M, 0.79)]),
    ("CoverageLow", {"engines": [engine()], "coverage": 0.81}, []),
    ("CoverageLow", {"engines": [engine()], "coverage": None}, []),
    ("CoverageLow", {"engines": [engine(drafts=0.9)], "coverage": 0.5}, []),
    ("VLLMDown", {"up": False}, [({}, 0)]),
    ("VLLMDown", {"up": False, "last_scrape": None}, []),
    ("VLLMDown", {}, []),
    ("VLLMNeverUp", {"up": False, "last_scrape": None}, [({}, 0)]),
    ("VLLMNeverUp", {"up": False}, []),
    ("NotJudged", {"old": True}, [(M, 1)]),
    ("NotJudged", {}, []),
]


@pytest.mark.parametrize(("name", "state", "expected"), CASES)
def test_condition(name, state, expected, look):
    state = dict(state)
    assert found(name, look(*state.pop("engines", []), **state)) == expected


def test_every_condition_is_held_to_both_sides():
    for name in CONDITIONS:
        results = [bool(expected) for case, _, expected in CASES if case == name]
        assert True in results
        assert False in results


def test_a_server_without_a_request_source_has_no_temperatures(look):
    bare = look(engine())
    object.__setattr__(bare.report, "requests", None)
    assert found("AcceptanceLowAtTemperature", bare) == found("CoverageLow", bare) == []


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("{model_name} on {instance}: {value:%}, limit {threshold:%}", "m on pod-7: 48.7%, limit 50%"),
        ("{value:g} and {value:d}", "0.487 and 0"),
        ("{past:%} {share:g}", "unknown unknown"),
        ("{threshold:s}", "0.5s"),
        ("{instance|any} of {pod|any}", "pod-7 of any"),
    ],
)
def test_a_description_is_filled_in(description, expected):
    alert = Alert("Name", Severity.INFO, "what", description, "1", 0)
    finding = Finding({"model_name": "m", "instance": "pod-7"}, 0.487, {"threshold": 0.5, "past": None})
    annotations = finding_annotations(alert, finding, "https://r.example")
    assert annotations == {"summary": "what", "description": expected, "runbook_url": "https://r.example/Name.md"}


def test_every_place_in_a_pushed_description_is_filled(look):
    """What the condition does not give would be told as unknown, or not at all."""
    states = [(name, dict(state)) for name, state, expected in CASES if expected]
    for name, state in states:
        alert = next(one for one in catalogue() if one.name == f"SpecDecode{name}")
        for finding in alert.condition(look(*state.pop("engines", []), **state)):
            missing = set(alert.readings) - set(finding.readings)
            assert not missing, name


@pytest.mark.servers
def test_prometheus_tells_the_same_in_the_same_words(look, tmp_path):
    """The direct push's text, expected of Prometheus: the two ways have one definition."""
    alert = next(one for one in catalogue() if one.name == "SpecDecodeAcceptanceLow")
    (finding,) = alert.condition(look(engine(acceptance=0.49)))
    placed = Finding({"instance": "low:9911", **finding.labels}, finding.value, finding.readings)
    pushed = finding_annotations(alert, placed, "https://specdec-sidecar.example/alerts/runbooks")

    class Same:
        def test(self, text=None):
            series = Pod("low").drafting(5, 0.49).series
            link = "https://grafana.example/d/specdec-operator?var-job=vllm&var-instance=low%3A9911&var-model_name=m"
            labels = {"severity": "critical", "job": "vllm", "namespace": "prod", **placed.labels}
            expected = {"exp_labels": labels, "exp_annotations": pushed | {"dashboard_url": link}}
            return {
                "interval": "1m",
                "input_series": [{"series": one, "values": values} for one, values in series.items()],
                "alert_rule_test": [{"eval_time": "30m", "alertname": alert.name, "exp_alerts": [expected]}],
            }

    failed = promtool(tmp_path, [Same()], shipped())
    assert failed is None, failed
