"""The alerts that follow from a model's values and verdicts, without what happened before."""

from dataclasses import replace

import pytest

from sidecar.analysis.alerts import model_alerts
from sidecar.analysis.engine.latency import Latency, Range, Source
from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.pod_alert import Alert, Severity
from sidecar.engine.names import Gauge, Phase
from sidecar.requests.messages import Speculation
from sidecar.settings.baselines import PlainLatency
from sidecar.settings.groups import Thresholds
from tests.export.reports import engine, judgement, model, speedup, temperature, window

P10, GAP, CACHE = Alert.P10_LOW, Alert.GAP_WIDE, Alert.CACHE_PRESSURE
THRESHOLDS = Thresholds(acceptance_p10=0.5, latency_gap_growth=1.5, kv_cache_usage=0.9)
JUDGED = judgement(Verdict.NET_POSITIVE, 0.7)
LOSES, PAYS = Verdict.NET_NEGATIVE, Verdict.NET_POSITIVE


def with_values(p10=0.9, growth=1.0, peak=0.5, judged=JUDGED, **engine_changes):
    """A model whose P99 - P50 has grown so much, with an engine where requests wait."""
    seconds = {0.5: 0.01, 0.99: 0.01 + 0.01 * growth}
    ranges = {quantile: Range(one, one) for quantile, one in seconds.items()}
    latency = Latency(seconds, 100.0, ranges, source=Source.REQUESTS)
    values = {
        "gauges": {Gauge.WAITING_FOR_CAPACITY: 2.0},
        "kv_cache_peak": peak,
        "latencies": {Phase.TPOT: latency},
    }
    return model(
        engines=(engine(**values | engine_changes),),
        judgement=judged,
        acceptance_p10=p10,
        plain_latencies={Phase.TPOT: PlainLatency({0.5: 0.01, 0.99: 0.02}, is_exact=True)},
    )


def alerts(of, thresholds=THRESHOLDS, *, has_dropped=False):
    found = model_alerts(of, thresholds, has_dropped=has_dropped)
    return {(one.alert, one.severity): pytest.approx(one.value) for one in found}


def warnings(of, thresholds=THRESHOLDS):
    return {alert for alert, _ in alerts(of, thresholds)}


@pytest.mark.parametrize(
    ("alert", "name", "within", "past"),
    [(P10, "p10", 0.5, 0.49), (GAP, "growth", 1.499, 1.501), (CACHE, "peak", 0.9, 0.91)],
)
def test_a_value_alerts_once_it_is_past_its_threshold(alert, name, within, past):
    """At the threshold it does not, as in the rules for Prometheus."""
    assert alerts(with_values(**{name: within})) == {}
    assert alerts(with_values(**{name: past})) == {(alert, Severity.WARNING): past}


def test_each_value_has_its_own_threshold():
    looser = Thresholds(acceptance_p10=0.4, latency_gap_growth=2, kv_cache_usage=0.95)
    values = with_values(p10=0.45, growth=1.8, peak=0.92)

    assert warnings(values) == {P10, GAP, CACHE}
    assert warnings(values, looser) == set()


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        (JUDGED, {P10, GAP, CACHE}),
        (Judgement(is_known=True), {CACHE}),  # below the gates
        # the rate tells nothing
        (judgement(PAYS, 0.7, speculation=Speculation("ngram", 3)), {GAP, CACHE}),
    ],
)
def test_a_value_counts_only_where_its_judgement_allows(judged, expected):
    assert warnings(with_values(p10=0.1, growth=9.0, peak=1.0, judged=judged)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gauges": {Gauge.WAITING_FOR_CAPACITY: 0.0}}, {GAP}),  # nothing waits for room
        ({"gauges": {Gauge.REQUESTS_WAITING: 1.0}}, {GAP, CACHE}),  # vLLM does not say for what
        ({"latencies": {}}, {CACHE}),
        ({"kv_cache_peak": None}, {GAP}),
    ],
)
def test_a_value_that_is_not_known_alerts_nobody(changes, expected):
    values = with_values(growth=9.0, peak=1.0)
    changed = tuple(replace(one, **changes) for one in values.engines)
    assert warnings(replace(values, engines=changed)) == expected


def test_the_gap_of_fewer_than_min_requests_is_just_the_slowest_one():
    wide = with_values(growth=9.0)  # of 100 requests
    assert warnings(wide, Thresholds(min_requests=101)) == set()
    assert warnings(wide, Thresholds(min_requests=100)) == {GAP}


CRITICAL, WARNING, INFO = Severity
SLOW = speedup(20.0, 30.0)


def measured(verdict, by_rate, rate):
    known = judgement(by_rate, rate, by_speedup=False, is_low=rate < 0.5)
    evidence = replace(known.evidence, speedup=SLOW if verdict is LOSES else speedup(30.0, 20.0))
    return replace(known, by_speedup=verdict, evidence=evidence)


COLLAPSED = judgement(LOSES, 0.01, has_collapsed=True)


@pytest.mark.parametrize(
    ("judged", "has_dropped", "expected"),
    [
        (judgement(PAYS, 0.7), True, set()),
        (judgement(LOSES, 0.4), False, {(Alert.LOW, WARNING)}),
        (judgement(LOSES, 0.4), True, {(Alert.LOW, CRITICAL)}),
        # where a time is known, the rate is information
        (measured(LOSES, LOSES, 0.4), True, {(Alert.SLOWER, CRITICAL), (Alert.LOW, INFO)}),
        (measured(PAYS, LOSES, 0.4), True, {(Alert.LOW, INFO)}),
        (measured(PAYS, PAYS, 0.7), True, set()),
        (COLLAPSED, True, {(Alert.COLLAPSED, CRITICAL), (Alert.LOW, WARNING)}),
    ],
)
def test_who_is_told_of_a_model_that_loses(judged, has_dropped, expected):
    assert set(alerts(model(engines=(), judgement=judged), has_dropped=has_dropped)) == expected


def test_a_low_rate_is_critical_by_the_setting_too():
    always = Thresholds(acceptance_low_is_critical=True)
    low = model(engines=(), judgement=judgement(LOSES, 0.4))
    assert alerts(low, always) == {(Alert.LOW, CRITICAL): 0.4}


def test_a_temperature_that_loses_has_a_warning_with_its_own_value():
    hot = temperature("1+", window=window(0.3), judgement=judgement(LOSES, 0.3))
    cold = temperature("0", window=window(0.8), judgement=judgement(PAYS, 0.8))
    (found,) = model_alerts(model(cold, hot, engines=()), THRESHOLDS, has_dropped=False)

    assert found.alert is Alert.LOW_AT_TEMPERATURE
    assert (found.temperature, found.value) == ("1+", pytest.approx(0.3))
    assert dict(found.labels) == {"model_name": "demo", "temperature": "1+"}
