"""The values that the direct push compares with a threshold each."""

from dataclasses import replace

import pytest

from sidecar.analysis.breaches import LIMITS, breaches
from sidecar.analysis.evidence import Acceptance, Evidence
from sidecar.analysis.judgement import Judgement
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds

P10, GAP = "SpecDecodeAcceptanceP10Low", "SpecDecodeLatencyGapWide"
KV_CACHE = "SpecDecodeKVCachePressure"
DRAFTED = Acceptance(drafts=100.0, draft_tokens=300.0, accepted_tokens=200.0)
JUDGED = Judgement(evidence=Evidence(window=DRAFTED), is_known=True, judged=DRAFTED)
IN_ONE_PASS = Evidence(window=DRAFTED, speculation=Speculation("ngram", 3))
THRESHOLDS = Thresholds(acceptance_p10=0.5, latency_gap_growth=1.5, kv_cache_usage=0.9)


@pytest.mark.parametrize(
    ("alert", "within", "past"), [(P10, 0.5, 0.49), (GAP, 1.5, 1.51), (KV_CACHE, 0.9, 0.91)]
)
def test_a_value_breaches_its_limit_once_it_is_past_the_threshold(alert, within, past):
    """At the threshold it does not, as in the rules for Prometheus."""
    assert breaches({alert: within}, JUDGED, THRESHOLDS) == {}
    assert breaches({alert: past}, JUDGED, THRESHOLDS) == {alert: past}


def test_each_value_has_its_own_threshold():
    looser = Thresholds(acceptance_p10=0.4, latency_gap_growth=2, kv_cache_usage=0.95)
    values = {P10: 0.45, GAP: 1.8, KV_CACHE: 0.92}

    assert breaches(values, JUDGED, THRESHOLDS) == values
    assert breaches(values, JUDGED, looser) == {}


@pytest.mark.parametrize(
    ("whole", "alerts"),
    [
        (JUDGED, {P10, GAP, KV_CACHE}),
        (Judgement(is_known=True), {KV_CACHE}),  # below the gates
        (replace(JUDGED, evidence=IN_ONE_PASS), {GAP, KV_CACHE}),  # the rate tells nothing
    ],
)
def test_a_value_counts_only_where_its_judgement_allows(whole, alerts):
    values = {P10: 0.1, GAP: 9.0, KV_CACHE: 1.0}

    assert set(breaches(values, whole, THRESHOLDS)) == alerts


def test_a_value_that_is_not_known_breaches_nothing():
    assert breaches({}, JUDGED, THRESHOLDS) == {}


def test_an_alert_has_one_limit():
    """A second one would fire it for another reason than its text gives."""
    assert len({limit.alert for limit in LIMITS}) == len(LIMITS)
