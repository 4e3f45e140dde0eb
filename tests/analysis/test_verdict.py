"""Acceptance over a window; verdicts by it and by speedup, and what traffic they take.

No verdict flaps at a threshold.
"""

from dataclasses import replace

import pytest

from sidecar.analysis.evidence import NO_DRAFTS, Acceptance, Evidence, sum_windows
from sidecar.analysis.judgement import Basis, Gate, Judgement, Undecided, Verdict
from sidecar.analysis.values import EngineValues, ModelValues
from sidecar.analysis.verdict import Judge, judge
from sidecar.engine.engine_key import EngineKey
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds
from tests.analysis.analysis_tools import evidence, window


def drafted(drafts, draft_tokens, accepted_tokens, *by_position):
    return Acceptance(
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted_tokens,
        accepted_per_position=by_position,
    )


@pytest.mark.parametrize(
    ("window", "rate", "length", "position_rates"),
    [
        (drafted(100, 300, 150, 80, 50, 20), 0.5, 2.5, (0.8, 0.5, 0.2)),
        # Of a page between two of vLLM's updates.
        (drafted(10, 30, 31, 11, 10, 10), 1.0, 4.1, (1.0, 1.0, 1.0)),
        (NO_DRAFTS, None, None, ()),
    ],
)
def test_rates_and_lengths_are_of_the_whole_window(window, rate, length, position_rates):
    """Not means of shorter parts: many drafts weigh more than few."""
    assert (window.rate, window.length, window.position_rates) == (rate, length, position_rates)


def test_position_rates_are_right_under_a_number_of_draft_tokens_that_varies():
    """Half of the drafts had one token.

    What was drafted at each position divides what was accepted there.
    """
    window = Acceptance(
        drafts=100, accepted_per_position=(80, 30, 20), drafted_per_position=(100, 50, 50, 0)
    )

    assert window.position_rates == (0.8, 0.6, 0.4)


def test_several_windows_are_summed_not_averaged():
    """An engine with little traffic counts little; a number that one lacks is unknown of all."""
    good = Acceptance(seconds=300, requests=9, drafts=1, draft_tokens=100, accepted_tokens=90)
    bad = Acceptance(seconds=200, requests=1, drafts=1, draft_tokens=300, accepted_tokens=30)
    both = sum_windows(
        [replace(good, accepted_per_position=(9,)), replace(bad, accepted_per_position=(1, 1))]
    )

    assert both.rate == pytest.approx(0.3)
    assert (both.seconds, both.requests, both.accepted_per_position) == (300, 10, (10, 1))
    assert sum_windows([good, Acceptance()]).requests is None
    assert sum_windows([]).rate is None


def test_positions_that_only_some_of_the_windows_have_are_unknown_for_all():
    """vLLM's counts have no draft tokens by position, so their sum has none either."""
    known = Acceptance(
        drafts=10, draft_tokens=20, accepted_per_position=(8, 4), drafted_per_position=(10, 10)
    )
    vllms = Acceptance(drafts=10, draft_tokens=20, accepted_per_position=(9, 9))

    assert sum_windows([known, vllms]).position_rates == (17 / 20, 13 / 20)
    assert sum_windows([known, Acceptance(drafts=10, draft_tokens=20)]).position_rates == ()
    assert sum_windows([known, NO_DRAFTS]).position_rates == (0.8, 0.4)


THRESHOLDS = Thresholds(min_requests=20, min_drafts_per_second=1.0, min_bucket_share=0.1)
SECONDS = 100.0  # of the sliding window
NEGATIVE, EVEN, POSITIVE = Verdict.NET_NEGATIVE, Verdict.BREAK_EVEN, Verdict.NET_POSITIVE
NONE = Verdict.INSUFFICIENT_DATA
ADAPTIVE = Speculation(method="eagle3", num_speculative_tokens=3, adaptive_verification=True)


def judge_each(*evidences):
    """The judgements on these, one after the other."""
    judgement = Judgement()
    return [
        judgement := judge(evidence_, THRESHOLDS, SECONDS, before=judgement)
        for evidence_ in evidences
    ]


def verdicts(*evidences):
    return [judgement.verdict for judgement in judge_each(*evidences)]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.0, NEGATIVE),
        (0.42, NEGATIVE),
        (0.44, NONE),
        (0.5, NONE),
        (0.53, NONE),
        (0.55, EVEN),
        (0.6, EVEN),
        (0.62, NONE),
        (0.68, NONE),
        (0.7, POSITIVE),
        (1.0, POSITIVE),
    ],
)
def test_a_first_verdict_is_certain(rate, expected):
    """Of a hundred requests a rate has an error of 0.02: a loss takes 3.5 of it, others two."""
    assert verdicts(evidence(rate)) == [expected]


def test_requests_make_a_verdict_certain_not_tokens():
    """A hundred times the draft tokens of as many requests tell no more."""
    assert verdicts(evidence(0.47, draft_tokens=300_000.0)) == [NONE]
    assert verdicts(evidence(0.47, requests=1000)) == [NEGATIVE]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((0.7, 0.6, 0.57, 0.44, 0.42), [POSITIVE, POSITIVE, EVEN, EVEN, NEGATIVE]),
        ((0.6, 0.69, 0.71, 0.73), [EVEN, EVEN, EVEN, POSITIVE]),
        ((0.42, 0.49, 0.51, 0.44, 0.53), [*[NEGATIVE] * 4, EVEN]),  # a loss ends at one error
        ((0.42, 0.9), [NEGATIVE, POSITIVE]),
        ((0.53, 0.44, 0.53), [NONE] * 3),
    ],
)
def test_a_verdict_changes_once_that_is_certain(rates, expected):
    """Every poll is another look, so a change takes more than a first verdict."""
    assert verdicts(*map(evidence, rates)) == expected


@pytest.mark.parametrize(
    ("low", "back", "threshold"),
    [
        (evidence(0.9, speedup=(0.9, 0.01)), evidence(0.9, speedup=(0.975, 0.005)), 0.97),
        (evidence(0.4, speedup=(1.0, 0.01)), evidence(0.4, speedup=(1.07, 0.005)), 1.05),
    ],
)
def test_a_verdict_that_only_the_margin_keeps_names_its_threshold(low, back, threshold):
    """Else the page would show a speedup above the threshold beside a verdict below it."""
    before, after = judge_each(low, back)
    assert (before.held_below, after.held_below) == (None, threshold)
    assert after.verdict is before.verdict
    alone = judge(back, THRESHOLDS, SECONDS)

    assert (alone.held_below, alone.verdict is before.verdict) == (None, False)


@pytest.mark.parametrize(
    ("rates", "kept"),
    [
        ((0.42, 0.49, 0.51, 0.53), [False, False, True, False]),
        ((0.7, 0.64, 0.56), [False, True, False]),
        ((0.53,), [False]),
    ],
)
def test_a_rate_beyond_a_threshold_of_its_verdict_is_marked(rates, kept):
    """So the page can say why the verdict is another than the rate beside it."""
    assert [one.is_kept for one in judge_each(*map(evidence, rates))] == kept


def test_what_would_decide_is_told_with_the_time_that_it_takes():
    """The error falls with the square root of the requests."""
    near = judge(evidence(0.53, seconds=100.0), THRESHOLDS, SECONDS)
    assert near.is_undecided
    assert near.undecided == Undecided(
        rate=0.53,
        error=0.02,
        seconds=100.0,
        line=0.5,
        needed=pytest.approx(100 * (4 / 3) ** 2 - 100),
    )

    between = judge(evidence(0.62), THRESHOLDS, SECONDS).undecided
    assert between.line == 0.65
    at_the_line = judge(evidence(0.5), THRESHOLDS, SECONDS).undecided
    assert at_the_line.needed is None  # four hours would not tell
    decided = judge(evidence(0.6), THRESHOLDS, SECONDS)
    assert (decided.undecided, decided.is_undecided) == (None, False)
    timed = judge(evidence(0.53, speedup=(1.2,)), THRESHOLDS, SECONDS)
    assert (timed.undecided, timed.is_undecided) == (None, False)


def test_a_verdict_outlasts_a_lull_in_its_traffic():
    """It is not told below the gates, and a rate near a threshold does not make another one."""
    judged = judge_each(evidence(0.42), evidence(0.42, requests=1), evidence(0.49))
    assert [one.verdict for one in judged] == [NEGATIVE, NONE, NONE]

    hour = {"hour": window(0.42, seconds=3600.0)}
    lull = replace(evidence(0.42, requests=1), hour=replace(hour["hour"], drafts=0.0))
    judged = judge_each(evidence(0.42), lull, evidence(0.49))
    assert [one.verdict for one in judged] == [NEGATIVE, NONE, NEGATIVE]


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
    """The page says which setting requires more traffic."""
    judgement = judge(evidence(0.3, **little), THRESHOLDS, SECONDS)

    assert (judgement.verdict, judgement.judged, judgement.acceptance, judgement.gate) == (
        NONE,
        None,
        None,
        gate,
    )


def test_a_verdict_holds_while_the_traffic_hovers_around_the_gate():
    """What was judged needs only half of it, so that the verdict does not come and go."""
    hovering = (evidence(0.3, requests=count) for count in (20, 19, 10, 9, 19, 20))

    assert verdicts(*hovering) == [NEGATIVE, NEGATIVE, NEGATIVE, NONE, NONE, NEGATIVE]


def in_an_hour(recent, **hour):
    """Five minutes at 0.3 with ``recent`` requests, within an hour at 0.6."""
    return Evidence(
        window=window(0.3, requests=recent, drafts=500.0), hour=window(0.6, seconds=3600.0, **hour)
    )


def test_a_small_pod_is_judged_over_an_hour_by_as_many_drafts_and_requests():
    """The hour lowers the pace that is needed, not the evidence."""
    assert judge(in_an_hour(19), THRESHOLDS, SECONDS).acceptance == pytest.approx(0.6)
    assert judge(in_an_hour(5, requests=19), THRESHOLDS, SECONDS).acceptance is None
    assert judge(in_an_hour(5, drafts=99.0), THRESHOLDS, SECONDS).acceptance is None
    drafts_nothing_now = Evidence(hour=window(0.3))

    assert judge(drafts_nothing_now, THRESHOLDS, SECONDS).verdict is NONE


def test_the_choice_between_five_minutes_and_an_hour_does_not_flap():
    """Else the acceptance rate would jump between those of two windows."""
    judgements = judge_each(*map(in_an_hour, (19, 20, 19, 10, 9, 19, 20)))

    assert [round(judgement.acceptance, 1) for judgement in judgements] == [
        0.6,
        0.3,
        0.3,
        0.3,
        0.6,
        0.6,
        0.3,
    ]


@pytest.mark.parametrize(
    ("speedup", "expected"),
    [
        ((0.96,), NEGATIVE),
        ((0.97,), EVEN),
        ((1.0499,), EVEN),
        ((1.05,), POSITIVE),
        ((0.9, 0.024), NONE),  # less than three errors below the threshold
        ((0.9, 0.023), NEGATIVE),
        ((1.2, 0.08), NONE),  # may be 1.04
        ((1.0, 0.01), EVEN),
        ((1.0, 0.03), NONE),  # may be 0.94 or 1.06
        ((1.2, 0.07), POSITIVE),
    ],
)
def test_a_known_speedup_decides_unless_its_error_reaches_across_a_line(speedup, expected):
    """Time is what matters; the rule of thumb is kept beside it."""
    judgement = judge(evidence(0.3, speedup=speedup), THRESHOLDS, SECONDS)

    assert (judgement.verdict, judgement.basis, judgement.by_acceptance) == (
        expected,
        Basis.SPEEDUP,
        NEGATIVE,
    )


def test_a_speedup_at_a_line_does_not_flap():
    """It has the same margin as the acceptance rate."""
    hovering = (evidence(0.3, speedup=(speedup,)) for speedup in (0.98, 0.96, 0.985, 0.96, 0.99))

    assert verdicts(*hovering) == [EVEN, NEGATIVE, NEGATIVE, NEGATIVE, EVEN]


def test_a_measured_loss_begins_three_errors_below_the_line_and_ends_one_above_it():
    """What pages has to be certain; and it has not ended while it may well be one."""
    seen = [(0.9, 0.03), (0.87, 0.03), (0.95, 0.03), (0.99, 0.03), (1.001, 0.03), (0.9, 0.03)]
    judged = (evidence(0.3, speedup=speedup) for speedup in seen)

    assert verdicts(*judged) == [NONE, NEGATIVE, NEGATIVE, NEGATIVE, NONE, NONE]


@pytest.mark.parametrize(
    ("speculation", "is_ruled"),
    [
        (Speculation("draft_model", 3), True),
        (Speculation("eagle3", 3), True),
        (Speculation("mtp", 3), True),
        (Speculation("eagle", 3, parallel_drafting=True), False),
        (ADAPTIVE, False),
        *(
            (Speculation(method, 12), False)
            for method in ("dflash", "ngram", "suffix", "custom_class")
        ),
    ],
)
def test_the_rule_of_thumb_is_for_models_that_draft_token_by_token_and_verify_all(
    speculation, is_ruled
):
    """With other methods a low acceptance rate may cost nothing, so only time decides."""
    for rate, expected in ((0.2, NEGATIVE), (0.9, POSITIVE)):
        judgement = judge(evidence(rate, speculation=speculation), THRESHOLDS, SECONDS)
        assert judgement.verdict is judgement.by_acceptance is (expected if is_ruled else NONE)
        assert judgement.basis is (Basis.ACCEPTANCE if is_ruled else Basis.SPEEDUP)
        # For information.
        assert (judgement.is_low, judgement.acceptance) == (rate < 0.5, pytest.approx(rate))
    for speedup, expected in ((1.2, POSITIVE), (0.8, NEGATIVE)):
        timed = judge(
            evidence(0.2, speedup=(speedup, 0.01), speculation=speculation), THRESHOLDS, SECONDS
        )
        assert (timed.verdict, timed.basis) == (expected, Basis.SPEEDUP)


@pytest.mark.parametrize(
    ("current", "is_low"),
    [
        (evidence(0.49), True),
        (evidence(0.51), True),  # the verdict stays, and with it the alert
        (evidence(0.53), False),
        (evidence(0.45, speedup=(1.3,)), True),  # for information
        (evidence(0.53, speedup=(1.3,)), False),
        (evidence(0.17, speculation=ADAPTIVE), True),
        (evidence(0.53, speculation=ADAPTIVE), False),
        (evidence(0.3, requests=1), None),
    ],
)
def test_a_low_rate_is_low_until_it_is_certain_that_it_is_not(current, is_low):
    """Also where a speedup decides, or no rate does."""
    assert judge_each(evidence(0.4), current)[-1].is_low is is_low


def test_a_rate_that_was_never_certain_is_neither_low_nor_not():
    """After a start of the sidecar, a rate that is not low yet would end an alert."""
    assert judge(evidence(0.44), THRESHOLDS, SECONDS).is_low is None


def as_evidence(rate):
    return rate if isinstance(rate, Evidence) else evidence(rate)


def model(whole, name="m", engines=None, **temperatures):
    return ModelValues(
        name=name,
        at=0.0,
        engines=tuple(
            EngineValues(key=EngineKey(name, label), evidence=as_evidence(rate))
            for label, rate in (engines or {}).items()
        ),
        no_split=None,
        whole=as_evidence(whole),
        temperatures={label: evidence(rate) for label, rate in temperatures.items()},
    )


def judged(judge_, *models):
    judge_.judge(models, 0.0)
    return judge_.judged


def test_verdicts_are_remembered_by_model_and_temperature_while_there_is_evidence():
    """One that comes back is judged anew, as nobody knows what it did meanwhile."""
    judge_ = Judge(THRESHOLDS, SECONDS)
    judged(judge_, model(0.42, hot=0.56), model(0.56, "n", hot=0.42))
    m, n = judged(judge_, model(0.51, hot=0.51), model(0.51, "n", hot=0.51)).values()
    assert (m.whole.verdict, m.temperatures["hot"].verdict) == (NEGATIVE, EVEN)
    assert (n.whole.verdict, n.temperatures["hot"].verdict) == (EVEN, NEGATIVE)
    judged(judge_)

    assert judged(judge_, model(0.51))["m"].whole.verdict is NONE


def test_new_thresholds_make_every_verdict_anew():
    """A verdict by the old ones must not hold back one by the new."""
    judge_ = Judge(THRESHOLDS, SECONDS)
    judged(judge_, model(0.42))
    judge_.apply(Thresholds(acceptance_more_tokens=0.9))

    assert judged(judge_, model(0.51))["m"].whole.verdict is NONE


def test_each_engine_is_judged_by_time_where_it_is_known_and_remembered():
    """Engines of one model may differ in what is known of them."""
    judge_, pays = Judge(THRESHOLDS, SECONDS), evidence(0.45, speedup=(1.3,))
    slow = evidence(0.7, speedup=(0.9,))
    engines = judged(judge_, model(pays, engines={"0": pays, "1": slow, "2": 0.42}))["m"].engines

    assert [judgement.verdict for judgement in engines.values()] == [POSITIVE, NEGATIVE, NEGATIVE]
    assert judged(judge_, model(pays, engines={"2": 0.51}))["m"].engines["2"].verdict is NEGATIVE


def test_a_verdict_holds_since_it_was_reached_and_names_the_one_that_it_replaced():
    """By another basis nothing was replaced; a clock that was set back has no older moment."""
    judge_ = Judge(THRESHOLDS, SECONDS)
    told = []
    for at, rate, speedup in (
        (10, 0.7, None), (20, 0.72, None), (30, 0.7, (1.3,)), (40, 0.7, (1.31,)), (50, 0.7, (0.9,)),
        (60, 0.7, (0.97, 0.03)), (70, 0.7, (1.3,)), (5, 0.7, (1.3,)),
    ):  # fmt: skip
        judge_.judge([model(evidence(rate, speedup=speedup))], float(at))
        whole = judge_.judged["m"].whole
        told.append((whole.verdict, whole.since, whole.was))
    assert told == [
        (POSITIVE, 10, None),
        (POSITIVE, 10, None),
        (POSITIVE, 30, None),
        (POSITIVE, 30, None),
        (NEGATIVE, 50, POSITIVE),
        (NEGATIVE, 50, POSITIVE),
        (POSITIVE, 70, NEGATIVE),
        (POSITIVE, 5, None),
    ]


@pytest.mark.parametrize(
    ("whole", "temperatures", "has_collapsed"),
    [
        ({}, {}, True),
        ({}, {"cold": 0.01, "hot": 0.02}, True),
        ({}, {"cold": 0.6, "hot": 0.0}, False),  # one temperature is spared
        ({"accepted_per_position": (60.0, 0.0)}, {}, False),  # the first position is accepted
        ({"rate": 0.06}, {}, False),
        ({"speculation": ADAPTIVE}, {}, False),
    ],
)
def test_drafts_that_are_accepted_nowhere_have_collapsed(whole, temperatures, has_collapsed):
    """A draft that fits at any temperature, or adapts its length, is not broken."""
    collapsed = evidence(**{"rate": 0.01, "accepted_per_position": (10.0, 0.0)} | whole)
    judgement = judged(Judge(THRESHOLDS, SECONDS), model(collapsed, **temperatures))["m"].whole

    assert judgement.has_collapsed is has_collapsed


@pytest.mark.parametrize("speedup", [None, (1.5, 0.01)])
def test_synthetic_acceptance_has_no_verdict(speedup):
    """It is configured, and replies are not the model's: a speedup would be worth nothing."""
    synthetic = Speculation("draft_model", 3, rejection_sample_method="synthetic")
    judged = judge(evidence(0.93, speedup=speedup, speculation=synthetic), Thresholds())

    assert judged.verdict is Verdict.INSUFFICIENT_DATA
    assert judged.acceptance is None
    assert not judged.is_low
