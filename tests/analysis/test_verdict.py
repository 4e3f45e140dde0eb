import pytest

from sidecar.analysis.verdict import (
    Basis,
    Estimate,
    Evidence,
    Judge,
    Judgement,
    ModelEvidence,
    Verdict,
    VerdictThresholds,
    judge,
)

THRESHOLDS = VerdictThresholds(min_requests=20, min_drafts_per_second=1.0, window=100.0, min_share=0.1)
NEGATIVE, EVEN, POSITIVE, NONE = Verdict.NET_NEGATIVE, Verdict.BREAK_EVEN, Verdict.NET_POSITIVE, "insufficient_data"


def evidence(acceptance, **changes):
    values = {"requests": 100, "drafts": 1000.0, "draft_tokens": 3000.0, "share": 1.0}
    return Evidence(acceptance=acceptance, **(values | changes))


def one_after_the_other(*found):
    judgement = Judgement(evidence=Evidence())
    return [(judgement := judge(one, THRESHOLDS, judgement)).verdict for one in found]


def by_rates(*rates):
    return one_after_the_other(*map(evidence, rates))


def by_speedups(*speedups):
    return one_after_the_other(*(evidence(0.3, speedup=Estimate(*speedup)) for speedup in speedups))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.0, NEGATIVE), (0.4999, NEGATIVE), (0.5, EVEN), (0.6499, EVEN), (0.65, POSITIVE), (1.0, POSITIVE), (None, NONE)],
)
def test_the_first_verdict_goes_by_the_thresholds(rate, expected):
    assert by_rates(rate) == [expected]


def test_a_rate_below_a_threshold_is_judged_so_whatever_it_was():
    """What alerts "below 0.5" has no exceptions."""
    assert by_rates(0.66, 0.6499, 0.4999) == [POSITIVE, EVEN, NEGATIVE]


def test_a_rate_at_a_threshold_does_not_flap():
    assert by_rates(0.505, 0.495, 0.515, 0.497, 0.519, 0.49) == [EVEN, *[NEGATIVE] * 5]
    assert by_rates(0.645, 0.655, 0.645, 0.669)[1:] == [EVEN, EVEN, EVEN]


def test_a_rate_beyond_the_margin_rises():
    assert by_rates(0.4, 0.52, 0.67, 0.655) == [NEGATIVE, EVEN, POSITIVE, POSITIVE]
    assert by_rates(0.4, 0.9) == [NEGATIVE, POSITIVE]


@pytest.mark.parametrize("little", [{"requests": 19}, {"drafts": 99.0}, {"share": 0.09}, {"draft_tokens": 0.0}])
def test_too_little_volume_gives_no_verdict(little):
    judgement = judge(evidence(0.3, **little), THRESHOLDS)
    assert judgement.verdict is Verdict.INSUFFICIENT_DATA
    assert not judgement.has_enough_data
    assert judgement.advice is None


def test_a_model_as_a_whole_needs_no_number_of_requests():
    assert judge(evidence(0.3, requests=None), THRESHOLDS).verdict is NEGATIVE


def test_a_verdict_holds_while_the_volume_hovers_around_what_it_takes():
    counts = (20, 19, 10, 9, 19, 20)
    found = one_after_the_other(*(evidence(0.3, requests=count) for count in counts))
    assert found == [NEGATIVE, NEGATIVE, NEGATIVE, NONE, NONE, NEGATIVE]


@pytest.mark.parametrize(
    ("speedup", "expected"),
    [
        ((0.96,), NEGATIVE),
        ((0.97,), EVEN),
        ((1.0499,), EVEN),
        ((1.05,), POSITIVE),
        ((0.9, 0.04), EVEN),  # may be 0.98
        ((0.9, 0.03), NEGATIVE),
        ((1.2, 0.08), EVEN),  # may be 1.04
        ((1.2, 0.07), POSITIVE),
    ],
)
def test_a_known_speedup_decides_unless_its_error_reaches_across_a_line(speedup, expected):
    judgement = judge(evidence(0.3, speedup=Estimate(*speedup)), THRESHOLDS)
    assert (judgement.verdict, judgement.basis, judgement.by_acceptance) == (expected, Basis.SPEEDUP, NEGATIVE)


def test_a_speedup_at_a_line_does_not_flap():
    assert by_speedups((0.98,), (0.96,), (0.985,), (0.96,), (0.99,)) == [EVEN, NEGATIVE, NEGATIVE, NEGATIVE, EVEN]


def test_a_speedup_needs_as_much_data():
    assert judge(evidence(0.3, requests=3, speedup=Estimate(1.5)), THRESHOLDS).verdict is Verdict.INSUFFICIENT_DATA


def test_without_a_speedup_the_rule_of_thumb_decides():
    judgement = judge(evidence(0.3), THRESHOLDS)
    assert (judgement.verdict, judgement.basis, judgement.by_speedup) == (NEGATIVE, Basis.ACCEPTANCE, None)


def test_what_loses_is_advised_on_though_its_number_of_tokens_fits():
    assert "pods that don't speculate" in judge(evidence(0.45), THRESHOLDS).advice
    assert judge(evidence(0.55), THRESHOLDS).advice is None
    # The number of tokens says more.
    assert judge(evidence(0.2), THRESHOLDS).advice == "Acceptance 0.20: speculate fewer tokens."


def test_what_is_faster_is_not_advised_against_and_what_is_slower_is():
    assert judge(evidence(0.45, speedup=Estimate(1.3)), THRESHOLDS).advice is None
    assert "pods that don't speculate" in judge(evidence(0.7, speedup=Estimate(0.8)), THRESHOLDS).advice


def model(name, whole, coverage=None, **temperatures):
    found = {label: evidence(rate) for label, rate in temperatures.items()}
    return ModelEvidence(model_name=name, whole=evidence(whole, requests=None), temperatures=found, coverage=coverage)


def test_a_model_and_each_of_its_temperatures_have_their_own_verdict():
    (found,) = Judge(THRESHOLDS).judge([model("m", 0.6, cold=0.9, hot=0.3)])
    assert found.whole.verdict is EVEN
    assert {label: one.verdict for label, one in found.temperatures.items()} == {"cold": POSITIVE, "hot": NEGATIVE}


def test_verdicts_are_remembered_by_model_and_temperature_while_there_is_evidence():
    judges = Judge(THRESHOLDS)
    judges.judge([model("m", 0.49, hot=0.51), model("n", 0.51, hot=0.49)])
    m, n = judges.judge([model("m", 0.51, hot=0.51), model("n", 0.51, hot=0.51)])
    assert [one.verdict for one in (m.whole, m.temperatures["hot"])] == [NEGATIVE, EVEN]
    assert [one.verdict for one in (n.whole, n.temperatures["hot"])] == [EVEN, NEGATIVE]
    judges.judge([])
    (anew,) = judges.judge([model("m", 0.51)])
    assert anew.whole.verdict is EVEN


@pytest.mark.parametrize(("coverage", "covered"), [(None, True), (0.8, True), (0.79, False)])
def test_the_split_speaks_for_the_traffic_that_is_attributed(coverage, covered):
    (found,) = Judge(THRESHOLDS).judge([model("m", 0.6, coverage=coverage)])
    assert found.is_covered is covered
