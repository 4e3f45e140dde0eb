"""The conditions over the sidecar's own state, and the text that comes with their matches."""

import pytest

from sidecar.alerting.conditions import CONDITIONS, context, with_hours
from sidecar.alerting.past import Past
from sidecar.alerting.rules import load_rules
from sidecar.engine.names import Gauge
from tests.alerts.alert_series import Pod
from tests.alerts.alert_state import bucket, engine, make_limits, make_report
from tests.alerts.alert_tools import DASHBOARD, RUNBOOKS, promtool, shipped

BASELINE = {"m": {"tpot": {0.5: 0.02, 0.99: 0.04}}}


def found(name, report, baselines=None):
    limits = make_limits(baselines)
    matches = CONDITIONS[f"SpecDecode{name}"](with_hours(report, Past(), limits), limits)
    return [(dict(match.labels), pytest.approx(match.value)) for match in matches]


CAPACITY = Gauge.WAITING_FOR_CAPACITY
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
    ("AcceptanceLow", {"engines": [engine(acceptance=0.3, requests=19)]}, []),
    ("AcceptanceLow", {"engines": [engine(acceptance=0.3, requests=1, running=19)]}, [(M, 0.3)]),
    ("AcceptanceLow", {"engines": [engine(acceptance=0.39)], "speedups": {None: 1.3}}, []),
    ("AcceptanceLow", {"engines": [engine(acceptance=0.39)], "speedups": {None: 0.99}}, [(M, 0.39)]),
    ("AcceptanceLow/info", {"engines": [engine(acceptance=0.39)], "speedups": {None: 1.3}}, [(M, 0.39)]),
    ("AcceptanceLow/info", {"engines": [engine(acceptance=0.39)], "speedups": {None: 0.99}}, []),
    ("AcceptanceLow/info", {"engines": [engine(acceptance=0.39)]}, []),
    ("AcceptanceLow/info", {"engines": [engine(acceptance=0.6)], "speedups": {None: 1.3}}, []),
    ("SlowerThanPlain", {"engines": [engine(acceptance=0.7)], "speedups": {None: 0.94}}, [(M, 0.94)]),
    ("SlowerThanPlain", {"engines": [engine(acceptance=0.7)], "speedups": {None: 0.96}}, []),  # within two errors
    ("SlowerThanPlain", {"engines": [engine(acceptance=0.35)], "speedups": {None: 1.3}}, []),
    ("SlowerThanPlain", {"engines": [engine(acceptance=0.7)]}, []),
    ("SlowerThanPlain", {"engines": [engine(drafts=0.95)], "speedups": {None: 0.5}}, []),
    ("SlowerThanPlain", {"engines": [engine(requests=19)], "speedups": {None: 0.5}}, []),
    ("SlowerThanPlain", {"engines": [engine()], "speedups": {None: 1.0}, "speedup_net_negative": 1.05}, [(M, 1.0)]),
    ("SlowerThanPlainAtTemperature", {"temperatures": {"1+": bucket(0.7)}, "speedups": {"1+": 0.9}}, [(HOT, 0.9)]),
    ("SlowerThanPlainAtTemperature", {"temperatures": {"1+": bucket(0.7)}, "speedups": {"1+": 0.96}}, []),
    ("SlowerThanPlainAtTemperature", {"temperatures": {"1+": bucket(0.3)}}, []),
    ("BreakEven", {"engines": [engine(acceptance=0.6, requests=19)]}, []),
    (
        "LatencyGapWide",
        {"engines": [engine(tpot=(0.02, 0.09), requests=19)], "baselines": BASELINE},
        [],
    ),
    ("AcceptanceP10Low", {"engines": [engine()], "rates": [0.49] * 20}, [(M, 0.49)]),
    ("AcceptanceP10Low", {"engines": [engine()], "rates": [0.51] * 20}, []),
    ("AcceptanceP10Low", {"engines": [engine()], "rates": [0.49] * 19}, []),
    ("AcceptanceP10Low", {"engines": [engine(drafts=0.95)], "rates": [0.49] * 20}, []),
    ("KVCachePressure", {"engines": [engine(peak=0.95, waiting=9, gauges={CAPACITY: 0})]}, []),
    ("KVCachePressure", {"engines": [engine(peak=0.95, waiting=9, gauges={CAPACITY: 1})]}, [(M, 0.95)]),
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
def test_condition(name, state, expected):
    state = dict(state)
    baselines = state.pop("baselines", None)
    assert found(name, make_report(*state.pop("engines", []), **state), baselines) == expected


def test_every_condition_is_held_to_both_sides():
    for condition in CONDITIONS:
        results = [bool(expected) for case, _, expected in CASES if f"SpecDecode{case}" == condition]
        assert True in results
        assert False in results


def test_every_condition_is_that_of_a_shipped_rule():
    assert set(CONDITIONS) <= set(load_rules())


def test_a_server_without_a_request_source_has_no_temperatures():
    bare = make_report(engine())
    object.__setattr__(bare, "requests", None)
    assert found("AcceptanceLowAtTemperature", bare) == found("CoverageLow", bare) == []


def test_the_context_names_the_pods_other_numbers():
    report = make_report(engine(acceptance=0.45), temperatures={"0": bucket(0.6, 3), "1+": bucket(0.225, 2)})
    past = Past()
    past.observe([report], 0)
    assert context(report, "m", past, make_limits()) == (
        "Acceptance 45%, a loss below 50%. A day before: unknown, this sidecar has counted for 0.0 h. "
        "By temperature: [0] 60% [1+] 22.5%. Share of the draft tokens: [0] 60% [1+] 40%. "
        "Time per output token: [0.5] 20ms [0.99] 40ms."
    )


def small(minutes, acceptance, requests=1.0, drafts=6.0, **more):
    """A pod of few requests: per minute ``requests`` and ``drafts`` so far, all at one acceptance."""
    counters = tuple(minutes * rate for rate in (requests, drafts, 3 * drafts, 3 * drafts * acceptance))
    return make_report(engine(acceptance=acceptance, drafts=drafts / 60, requests=5, counters=counters), **more)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"acceptance": 0.3}, [(M, 0.3)]),
        ({"acceptance": 0.6}, []),
        ({"acceptance": 0.3, "requests": 0.3}, []),
        ({"acceptance": 0.3, "drafts": 4.9}, []),
    ],
)
def test_a_small_pod_is_judged_over_an_hour(pod, expected):
    past, limits = Past(), make_limits()
    for minute in range(61):
        past.observe([small(minute, **pod)], minute * 60)
    matches = CONDITIONS["SpecDecodeAcceptanceLow"](with_hours(small(60, **pod), past, limits), limits)
    assert [(dict(match.labels), pytest.approx(match.value)) for match in matches] == expected


@pytest.mark.servers
def test_prometheus_and_the_push_use_the_same_words(tmp_path):
    """The direct push's text, as Prometheus would write it."""
    rule = load_rules()["SpecDecodeAcceptanceLow"]
    labels = {"instance": "low:9911", "model_name": "m"}

    class Same:
        checks = ()

        def test(self, text=None):
            series = Pod("low").drafting(5, 0.49).series
            annotations = {
                "summary": rule.text(rule.summary, labels, 0.49),
                "description": rule.text(rule.description, labels, 0.49),
                "runbook_url": f"{RUNBOOKS}/{rule.name}.md",
                "dashboard_url": DASHBOARD
                + "&var-instance=low%3A9911&var-job=vllm&var-model_name=m&var-namespace=prod",
            }
            own = {"severity": "critical", "job": "vllm", "namespace": "prod", **labels}
            expected = {"exp_labels": own, "exp_annotations": annotations}
            return {
                "interval": "1m",
                "input_series": [{"series": one, "values": values} for one, values in series.items()],
                "alert_rule_test": [{"eval_time": "30m", "alertname": rule.name, "exp_alerts": [expected]}],
            }

    failed = promtool(tmp_path, [Same()], shipped())
    assert failed is None, failed
