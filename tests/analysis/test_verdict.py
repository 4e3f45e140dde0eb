"""Verdicts by acceptance and by speedup, what traffic they take, and that none flaps at a threshold."""

import pytest

from sidecar.analysis.evidence import Evidence, ModelEvidence
from sidecar.analysis.verdict import Basis, Gate, Judge, Judgement, Verdict, judge
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds
from tests.analysis.analysis_tools import evidence, window

THRESHOLDS = Thresholds(min_requests=20, min_drafts_per_second=1.0, min_bucket_share=0.1)
SECONDS = 100.0  # of the sliding window
NEGATIVE, EVEN, POSITIVE = Verdict.NET_NEGATIVE, Verdict.BREAK_EVEN, Verdict.NET_POSITIVE
NONE = Verdict.INSUFFICIENT_DATA
ADAPTIVE = Speculation(method="eagle3", num_speculative_tokens=3, adaptive_verification=True)


def judge_each(*evidences):
    """The judgements on these, one after the other."""
    judgement = Judgement()
    return [judgement := judge(evidence_, THRESHOLDS, SECONDS, before=judgement) for evidence_ in evidences]


def verdicts(*evidences):
    return [judgement.verdict for judgement in judge_each(*evidences)]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.0, NEGATIVE), (0.4999, NEGATIVE), (0.5, EVEN), (0.6499, EVEN), (0.65, POSITIVE), (1.0, POSITIVE)],
)
def test_the_first_verdict_goes_by_the_thresholds(rate, expected):
    assert verdicts(evidence(rate)) == [expected]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((0.66, 0.6499, 0.4999), [POSITIVE, EVEN, NEGATIVE]),  # what alerts "below 0.5" has no exceptions
        ((0.505, 0.495, 0.515, 0.497, 0.519, 0.49), [EVEN, *[NEGATIVE] * 5]),
        ((0.645, 0.655, 0.645, 0.669), [EVEN] * 4),
        ((0.4, 0.52, 0.67, 0.655), [NEGATIVE, EVEN, POSITIVE, POSITIVE]),
        ((0.4, 0.9), [NEGATIVE, POSITIVE]),
    ],
)
def test_a_verdict_falls_at_a_threshold_and_rises_beyond_a_margin(rates, expected):
    assert verdicts(*map(evidence, rates)) == expected


@pytest.mark.parametrize(
    ("low", "back", "threshold"),
    [
        (evidence(0.4), evidence(0.51), 0.5),
        (evidence(0.6), evidence(0.66), 0.65),
        (evidence(0.9, speedup=(0.9, 0.01)), evidence(0.9, speedup=(0.92, 0.03)), 0.97),
        (evidence(0.4, speedup=(1.0, 0.01)), evidence(0.4, speedup=(1.07, 0.005)), 1.05),
    ],
)
def test_a_verdict_that_only_the_margin_keeps_names_its_threshold(low, back, threshold):
    before, after = judge_each(low, back)
    assert (before.held_below, after.held_below) == (None, threshold)
    assert after.verdict is before.verdict
    alone = judge(back, THRESHOLDS, SECONDS)
    assert (alone.held_below, alone.verdict is before.verdict) == (None, False)


@pytest.mark.parametrize(
    ("little", "gate"),
    [
        ({"requests": 19}, Gate("min_requests", 20)),
        ({"requests": None}, Gate("min_requests", 20)),
        ({"drafts": 99.0}, Gate("min_drafts_per_second", 1.0)),
        ({"share": 0.09}, Gate("min_bucket_share", 0.1)),
        ({"draft_tokens": 0.0}, None),
    ],
)
def test_too_little_traffic_gives_no_verdict_and_no_rate_but_the_gate(little, gate):
    judgement = judge(evidence(0.3, **little), THRESHOLDS, SECONDS)
    assert (judgement.verdict, judgement.judged, judgement.acceptance, judgement.gate) == (NONE, None, None, gate)


def test_a_verdict_holds_while_the_volume_hovers_around_what_it_takes():
    counts = (20, 19, 10, 9, 19, 20)
    found = verdicts(*(evidence(0.3, requests=count) for count in counts))
    assert found == [NEGATIVE, NEGATIVE, NEGATIVE, NONE, NONE, NEGATIVE]


def hours(*requests):
    """Judgements on five minutes at 0.3 with so many requests, one after the other, within an hour at 0.6."""
    judgement = Judgement()
    for count in requests:
        found = Evidence(window=window(0.3, requests=count, drafts=500.0), hour=window(0.6, seconds=3600.0))
        judgement = judge(found, THRESHOLDS, SECONDS, before=judgement)
        yield judgement.acceptance


def test_a_small_pod_is_judged_over_an_hour_by_as_many_drafts_and_requests():
    assert list(hours(19)) == [pytest.approx(0.6)]
    small = Evidence(window=window(0.3, requests=5), hour=window(0.6, requests=19))
    assert judge(small, THRESHOLDS, SECONDS).acceptance is None
    slow = Evidence(window=window(0.3, requests=5), hour=window(0.6, drafts=99.0))
    assert judge(slow, THRESHOLDS, SECONDS).acceptance is None


def test_the_choice_between_five_minutes_and_an_hour_does_not_flap():
    assert [round(rate, 1) for rate in hours(19, 20, 19, 10, 9, 19, 20)] == [0.6, 0.3, 0.3, 0.3, 0.6, 0.6, 0.3]


def test_a_pod_that_drafts_nothing_now_is_not_judged_over_an_hour():
    assert judge(Evidence(hour=window(0.3)), THRESHOLDS, SECONDS).verdict is NONE


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
    judgement = judge(evidence(0.3, speedup=speedup), THRESHOLDS, SECONDS)
    assert (judgement.verdict, judgement.basis, judgement.by_acceptance) == (expected, Basis.SPEEDUP, NEGATIVE)


def test_a_speedup_at_a_line_does_not_flap():
    speedups = (0.98, 0.96, 0.985, 0.96, 0.99)
    found = verdicts(*(evidence(0.3, speedup=(speedup,)) for speedup in speedups))
    assert found == [EVEN, NEGATIVE, NEGATIVE, NEGATIVE, EVEN]


@pytest.mark.parametrize(("speedup", "expected"), [(None, NONE), ((1.3,), POSITIVE), ((0.8,), NEGATIVE)])
def test_where_verification_is_adaptive_only_time_decides(speedup, expected):
    found = judge(evidence(0.17, speedup=speedup, speculation=ADAPTIVE), THRESHOLDS, SECONDS)
    assert (found.verdict, found.basis, found.by_acceptance) == (expected, Basis.SPEEDUP, NONE)
    assert found.acceptance == pytest.approx(0.17)  # for information


@pytest.mark.parametrize(
    ("speculation", "is_ruled"),
    [
        (Speculation("draft_model", 3), True),
        (Speculation("eagle3", 3), True),
        (Speculation("mtp", 3), True),
        (Speculation("eagle", 3, parallel_drafting=True), False),
        *((Speculation(method, 12), False) for method in ("dflash", "ngram", "suffix", "custom_class")),
    ],
)
def test_the_rule_of_thumb_is_for_models_that_draft_token_by_token(speculation, is_ruled):
    for rate, expected in ((0.2, NEGATIVE), (0.9, POSITIVE)):
        found = judge(evidence(rate, speculation=speculation), THRESHOLDS, SECONDS)
        assert found.verdict is (expected if is_ruled else NONE)
        assert (found.is_low, found.acceptance) == (rate < 0.5, pytest.approx(rate))  # for information
    timed = judge(evidence(0.2, speedup=(1.2, 0.01), speculation=speculation), THRESHOLDS, SECONDS)
    assert (timed.verdict, timed.basis) == (POSITIVE, Basis.SPEEDUP)


@pytest.mark.parametrize(
    ("found", "low"),
    [
        (evidence(0.49), True),
        (evidence(0.51), True),  # the verdict stays, and with it the alert
        (evidence(0.53), False),
        (evidence(0.45, speedup=(1.3,)), True),  # for information
        (evidence(0.51, speedup=(1.3,)), False),
        (evidence(0.51, speedup=(0.8,)), False),
        (evidence(0.17, speculation=ADAPTIVE), True),
        (evidence(0.51, speculation=ADAPTIVE), False),
        (evidence(0.3, requests=1), False),
    ],
)
def test_a_low_rate_is_low_until_it_is_clearly_above_the_threshold_where_it_decides(found, low):
    assert judge(found, THRESHOLDS, SECONDS, before=judge(evidence(0.4), THRESHOLDS, SECONDS)).is_low is low


def model(whole, name="m", engines=None, **temperatures):
    return ModelEvidence(
        model_name=name,
        whole=whole if isinstance(whole, Evidence) else evidence(whole),
        temperatures={label: evidence(rate) for label, rate in temperatures.items()},
        engines={label: one if isinstance(one, Evidence) else evidence(one) for label, one in (engines or {}).items()},
    )


def judged(judges, *models, at=0.0):
    judges.judge(models, at)
    return judges.held(at, fresh=True)


def test_a_model_and_each_of_its_temperatures_have_their_own_verdict():
    found = judged(Judge(THRESHOLDS, SECONDS), model(0.6, cold=0.9, hot=0.3))["m"]
    assert found.whole.verdict is EVEN
    assert {label: one.verdict for label, one in found.temperatures.items()} == {"cold": POSITIVE, "hot": NEGATIVE}


def test_verdicts_are_remembered_by_model_and_temperature_while_there_is_evidence():
    judges = Judge(THRESHOLDS, SECONDS)
    judged(judges, model(0.49, hot=0.51), model(0.51, "n", hot=0.49))
    m, n = judged(judges, model(0.51, hot=0.51), model(0.51, "n", hot=0.51)).values()
    assert [one.verdict for one in (m.whole, m.temperatures["hot"])] == [NEGATIVE, EVEN]
    assert [one.verdict for one in (n.whole, n.temperatures["hot"])] == [EVEN, NEGATIVE]
    judged(judges)
    assert judged(judges, model(0.51))["m"].whole.verdict is EVEN


def test_new_thresholds_make_every_verdict_anew():
    judges = Judge(THRESHOLDS, SECONDS)
    judged(judges, model(0.49))
    judges.apply(Thresholds(acceptance_more_tokens=0.9))
    assert judged(judges, model(0.51))["m"].whole.verdict is EVEN


def test_each_engine_is_judged_by_time_where_it_is_known_and_remembered():
    judges, pays = Judge(THRESHOLDS, SECONDS), evidence(0.45, speedup=(1.3,))
    found = judged(judges, model(pays, engines={"0": pays, "1": evidence(0.7, speedup=(0.9,)), "2": 0.49}))["m"]
    assert {name: one.verdict for name, one in found.engines.items()} == {"0": POSITIVE, "1": NEGATIVE, "2": NEGATIVE}
    assert judged(judges, model(pays, engines={"2": 0.51}))["m"].engines["2"].verdict is NEGATIVE


def collapse(*, first=10.0, speculation=None, rate=0.01, **temperatures):
    whole = evidence(rate, accepted_per_position=(first, 0.0), speculation=speculation)
    return judged(Judge(THRESHOLDS, SECONDS), model(whole, **temperatures))["m"].whole


def test_nothing_accepted_anywhere_is_a_fault():
    assert collapse().has_collapsed
    found = collapse(cold=0.01, hot=0.02)
    assert found.has_collapsed
    assert found.verdict is NEGATIVE


@pytest.mark.parametrize(
    "other",
    [{"cold": 0.6, "hot": 0.0}, {"first": 60.0}, {"rate": 0.06}, {"speculation": ADAPTIVE}],
    ids=["a temperature", "the first position", "some", "adaptive"],
)
def test_a_low_acceptance_with_an_explanation_is_no_fault(other):
    assert not collapse(**other).has_collapsed
