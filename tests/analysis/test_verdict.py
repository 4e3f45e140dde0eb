import pytest

from sidecar.analysis.acceptance import Acceptance
from sidecar.analysis.evidence import Estimate, Evidence, ModelEvidence
from sidecar.analysis.speed.steps import StepCosts
from sidecar.analysis.verdict import Basis, Judge, Judgement, Verdict, judge
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds

THRESHOLDS = Thresholds(min_requests=20, min_drafts_per_second=1.0, min_bucket_share=0.1)
SECONDS = 100.0  # of the sliding window
NEGATIVE, EVEN, POSITIVE = Verdict.NET_NEGATIVE, Verdict.BREAK_EVEN, Verdict.NET_POSITIVE
NONE = Verdict.INSUFFICIENT_DATA
ELSEWHERE = "Route this traffic to pods that do not speculate."
ADAPTIVE = Speculation(method="eagle3", num_speculative_tokens=3, adaptive_verification=True)


def window(rate, **changes):
    values = {"seconds": 100.0, "requests": 100, "drafts": 1000.0, "draft_tokens": 3000.0, "share": 1.0} | changes
    accepted = {"accepted_tokens": rate * values["draft_tokens"]}
    return Acceptance(**(accepted | values))


def evidence(rate, *, speedup=None, speculation=None, costs=None, **changes):
    speedup = Estimate(*speedup) if speedup else None
    return Evidence(window=window(rate, **changes), speedup=speedup, speculation=speculation, costs=costs)


def one_after_the_other(*found):
    judgement = Judgement()
    return [(judgement := judge(one, THRESHOLDS, SECONDS, before=judgement)).verdict for one in found]


def by_rates(*rates):
    return one_after_the_other(*map(evidence, rates))


def by_speedups(*speedups):
    return one_after_the_other(*(evidence(0.3, speedup=speedup) for speedup in speedups))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.0, NEGATIVE), (0.4999, NEGATIVE), (0.5, EVEN), (0.6499, EVEN), (0.65, POSITIVE), (1.0, POSITIVE)],
)
def test_the_first_verdict_goes_by_the_thresholds(rate, expected):
    assert by_rates(rate) == [expected]


@pytest.mark.parametrize(
    ("rates", "verdicts"),
    [
        ((0.66, 0.6499, 0.4999), [POSITIVE, EVEN, NEGATIVE]),  # what alerts "below 0.5" has no exceptions
        ((0.505, 0.495, 0.515, 0.497, 0.519, 0.49), [EVEN, *[NEGATIVE] * 5]),
        ((0.645, 0.655, 0.645, 0.669), [EVEN] * 4),
        ((0.4, 0.52, 0.67, 0.655), [NEGATIVE, EVEN, POSITIVE, POSITIVE]),
        ((0.4, 0.9), [NEGATIVE, POSITIVE]),
    ],
)
def test_a_verdict_falls_at_a_threshold_and_rises_beyond_a_margin(rates, verdicts):
    assert by_rates(*rates) == verdicts


ACCEPTANCE, LOWER, UPPER = "acceptance rate", "speedup minus 2 standard errors", "speedup plus 2 standard errors"


@pytest.mark.parametrize(
    ("low", "back", "stays"),
    [
        (evidence(0.4), evidence(0.51), f"The {ACCEPTANCE} is back above 0.5, but the verdict stays net negative"),
        (evidence(0.6), evidence(0.66), f"The {ACCEPTANCE} is back above 0.65, but the verdict stays break even"),
        (
            evidence(0.9, speedup=(0.9, 0.01)),
            evidence(0.9, speedup=(0.92, 0.03)),
            f"The {UPPER} is back above 0.97, but the verdict stays net negative below 0.99, so that it does not flap.",
        ),
        (evidence(0.4, speedup=(1.0, 0.01)), evidence(0.4, speedup=(1.07, 0.005)), f"The {LOWER} is back above 1.05,"),
    ],
)
def test_the_advice_says_where_only_the_margin_keeps_a_verdict(low, back, stays):
    before = judge(low, THRESHOLDS, SECONDS)
    after = judge(back, THRESHOLDS, SECONDS, before=before)
    assert after.verdict is before.verdict
    assert after.advice.startswith(stays)
    assert after.advice.endswith(before.advice or "so that it does not flap.")
    assert judge(back, THRESHOLDS, SECONDS).verdict is not before.verdict


@pytest.mark.parametrize(
    ("little", "missing"),
    [
        ({"requests": 19}, "min_requests (20)"),
        ({"requests": None}, "min_requests (20)"),
        ({"drafts": 99.0}, "min_drafts_per_second (1)"),
        ({"share": 0.09}, "min_bucket_share (0.1)"),
        ({"draft_tokens": 0.0}, None),
    ],
)
def test_too_little_volume_gives_no_verdict_and_no_rate_but_a_reason(little, missing):
    judgement = judge(evidence(0.3, **little), THRESHOLDS, SECONDS)
    assert judgement.verdict is NONE
    assert judgement.acceptance is None
    assert judgement.advice is None
    assert judgement.missing == (missing and f"No verdict: below thresholds.{missing}.")


def test_a_verdict_holds_while_the_volume_hovers_around_what_it_takes():
    counts = (20, 19, 10, 9, 19, 20)
    found = one_after_the_other(*(evidence(0.3, requests=count) for count in counts))
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
    assert by_speedups((0.98,), (0.96,), (0.985,), (0.96,), (0.99,)) == [EVEN, NEGATIVE, NEGATIVE, NEGATIVE, EVEN]


def test_what_loses_is_advised_on_though_its_number_of_tokens_fits():
    assert "pods that do not speculate" in judge(evidence(0.45), THRESHOLDS, SECONDS).advice
    assert judge(evidence(0.55), THRESHOLDS, SECONDS).advice is None
    assert judge(evidence(0.45, accepted_per_position=(450,)), THRESHOLDS, SECONDS).advice == ELSEWHERE
    # The number of tokens says more.
    assert judge(evidence(0.2), THRESHOLDS, SECONDS).advice == "Acceptance rate 0.20: speculate fewer tokens."


@pytest.mark.parametrize(("rate", "advised"), [(0.85, True), (0.75, False)])
def test_more_tokens_are_advised_above_the_threshold_where_time_advises_no_fewer(rate, advised):
    steps = StepCosts(actual=0.012, plain=0.01, drafted=3)
    found = judge(evidence(rate, costs=steps, accepted_per_position=(900, 850, 800)), THRESHOLDS, SECONDS)
    assert ("speculate more tokens" in (found.advice or "")) == advised


def test_what_is_faster_is_not_advised_against_and_what_is_slower_is():
    assert judge(evidence(0.45, speedup=(1.3,)), THRESHOLDS, SECONDS).advice is None
    assert "pods that do not speculate" in judge(evidence(0.7, speedup=(0.8,)), THRESHOLDS, SECONDS).advice


@pytest.mark.parametrize(("speedup", "expected"), [(None, NONE), ((1.3,), POSITIVE), ((0.8,), NEGATIVE)])
def test_where_verification_is_adaptive_only_time_decides(speedup, expected):
    found = judge(evidence(0.17, speedup=speedup, speculation=ADAPTIVE), THRESHOLDS, SECONDS)
    assert (found.verdict, found.basis, found.by_acceptance) == (expected, Basis.SPEEDUP, NONE)
    assert found.acceptance == pytest.approx(0.17)  # for information
    assert found.advice == (ELSEWHERE if expected is NEGATIVE else None)


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
        assert (found.advice is not None) is is_ruled
    timed = judge(evidence(0.2, speedup=(1.2, 0.01), speculation=speculation), THRESHOLDS, SECONDS)
    assert (timed.verdict, timed.basis) == (POSITIVE, Basis.SPEEDUP)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("eagle3", []),
        ("ngram", ["token by token, and method ngram does not", "does not use async scheduling, which"]),
        ("suffix", ["method suffix does not", "does not use async scheduling and model runner V2, which"]),
    ],
)
def test_what_a_method_costs_beside_its_drafts_is_said(method, words):
    caveats = evidence(0.6, speculation=Speculation(method, 3)).caveats()
    assert len(caveats) == len(words)
    assert all(part in caveat for part, caveat in zip(words, caveats, strict=True))


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"speculation": Speculation("eagle3", 3)}, "[[1, 4, 3], [5, 8, 0]]"),
        ({"speculation": Speculation("custom_class", 3)}, None),
        ({"speculation": Speculation("eagle3", 3), "is_data_parallel": True}, None),
        ({}, None),
    ],
)
def test_a_schedule_is_advised_only_where_vllm_is_known_to_follow_it(changes, advice):
    costs = {4: StepCosts(actual=0.012, plain=0.010, drafted=3), 8: StepCosts(actual=0.05, plain=0.010, drafted=3)}
    accepted = window(0.6, accepted_per_position=(800, 600, 400))
    found = Evidence(window=accepted, costs=costs[4], costs_by_load=costs, **changes)
    said = judge(found, THRESHOLDS, SECONDS).advice or ""
    assert said.partition("num_speculative_tokens_per_batch_size to ")[2].rstrip(".") == (advice or "")


def test_where_a_schedule_varies_the_number_of_tokens_the_advice_is_on_the_schedule():
    scheduled = Speculation(method="eagle3", num_speculative_tokens=3, per_batch_size=True)
    assert judge(evidence(0.55, speculation=scheduled), THRESHOLDS, SECONDS).advice is None
    assert judge(evidence(0.9, speculation=scheduled), THRESHOLDS, SECONDS).advice is None
    assert judge(evidence(0.2, speculation=scheduled), THRESHOLDS, SECONDS).advice == ELSEWHERE
    varied = Evidence(
        window=window(0.6, accepted_per_position=(700, 400), drafted_per_position=(1000, 800)),
        speculation=scheduled,
        costs=StepCosts(actual=0.03, plain=0.01, drafted=1.8),
        costs_by_load={
            1: StepCosts(actual=0.011, plain=0.01, drafted=2),
            8: StepCosts(actual=0.03, plain=0.01, drafted=1),
        },
    )
    assert (
        judge(varied, THRESHOLDS, SECONDS).advice
        == "To adapt to the load, set num_speculative_tokens_per_batch_size to [[1, 1, 2], [2, 8, 0]]."
    )


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


def test_only_the_whole_is_advised_on_the_number_of_tokens():
    """An engine has one number for all of its temperatures."""
    found = judged(Judge(THRESHOLDS, SECONDS), model(0.3, hot=0.2))["m"]
    assert found.whole.advice == "Acceptance rate 0.30: speculate fewer tokens."
    assert "pods that do not speculate" in found.temperatures["hot"].advice


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


@pytest.mark.parametrize(
    ("whole", "engines", "losing"),
    [
        (0.7, {"0": 0.9, "1": 0.12}, ("1",)),
        (0.7, {"0": 0.9, "1": 0.6}, ()),
        (0.3, {"0": 0.4, "1": 0.12}, ()),  # the whole loses
        (0.7, {"0": 0.12}, ()),
    ],
)
def test_the_whole_is_judged_and_an_engine_that_loses_alone_is_named(whole, engines, losing):
    found = judged(Judge(THRESHOLDS, SECONDS), model(whole, engines=engines))["m"].whole
    assert found.caveats == tuple(
        f"Engine {name} is net negative on its own: it accepts 12% of its draft tokens." for name in losing
    )


def test_each_engine_is_judged_by_time_where_it_is_known_and_remembered():
    judges, pays = Judge(THRESHOLDS, SECONDS), evidence(0.45, speedup=(1.3,))
    found = judged(judges, model(pays, engines={"0": pays, "1": evidence(0.7, speedup=(0.9,)), "2": 0.49}))["m"]
    assert {name: one.verdict for name, one in found.engines.items()} == {"0": POSITIVE, "1": NEGATIVE, "2": NEGATIVE}
    assert found.whole.caveats == (
        "Engine 1 is net negative on its own: decoding is 0.90 times as fast as without speculation.",
        "Engine 2 is net negative on its own: it accepts 49% of its draft tokens.",
    )
    assert judged(judges, model(pays, engines={"2": 0.51}))["m"].engines["2"].verdict is NEGATIVE


@pytest.mark.parametrize(
    ("sampler", "said"), [(None, ""), ("standard", ""), ("synthetic", "configured, not measured"), ("fly", "fly also")]
)
def test_what_a_lossy_sampler_accepts_is_said(sampler, said):
    speculation = Speculation(method="eagle3", num_speculative_tokens=3, rejection_sample_method=sampler)
    found = judged(Judge(THRESHOLDS, SECONDS), model(evidence(0.9, speculation=speculation)))["m"].whole
    assert found.verdict is POSITIVE
    assert said in "".join(found.caveats)
    assert bool(found.caveats) == bool(said)


def collapse(*, first=10.0, speculation=None, rate=0.01, **temperatures):
    whole = evidence(rate, accepted_per_position=(first, 0.0), speculation=speculation)
    return judged(Judge(THRESHOLDS, SECONDS), model(whole, **temperatures))["m"].whole


def test_nothing_accepted_anywhere_is_a_fault():
    assert collapse().has_collapsed
    found = collapse(cold=0.01, hot=0.02)
    assert found.has_collapsed
    assert found.verdict is NEGATIVE
    assert "High temperatures alone do not cause this" in found.advice


@pytest.mark.parametrize(
    "other",
    [{"cold": 0.6, "hot": 0.0}, {"first": 60.0}, {"rate": 0.06}, {"speculation": ADAPTIVE}],
    ids=["a temperature", "the first position", "some", "adaptive"],
)
def test_a_low_acceptance_with_an_explanation_is_no_fault(other):
    assert not collapse(**other).has_collapsed
