"""The sentence at the top of the page."""

from dataclasses import replace

import pytest

from sidecar.analysis.speed.speedup import Withheld
from sidecar.analysis.verdict import Verdict
from sidecar.requests.messages import Speculation
from sidecar.wording.answer import answer
from tests.export import reports

GOOD, EVEN, BAD, NONE = Verdict.NET_POSITIVE, Verdict.BREAK_EVEN, Verdict.NET_NEGATIVE, Verdict.INSUFFICIENT_DATA


def said(*models, **changes):
    found = answer(reports.report(*models, **changes))
    return found.text, found.tone


def why(*models, **changes):
    return answer(reports.report(*models, **changes)).why


def test_nothing_is_drafted():
    idle = reports.model(judgement=reports.judgement(NONE))
    assert said(idle) == said() == ("vLLM is not drafting.", "mute")


@pytest.mark.parametrize(
    ("temperatures", "expected"),
    [
        ([("0", GOOD, 0.8, 0.6), ("0.7-1", GOOD, 0.7, 0.4)],
         ("Speculation pays at every temperature with enough traffic.", "good")),
        ([("0", GOOD, 0.8, 0.6), ("0.7-1", EVEN, 0.6, 0.4)],
         ("Speculation roughly breaks even at temperature 0.7-1.", "even")),
        ([("0", GOOD, 0.8, 0.62), ("0.7-1", BAD, 0.4, 0.2), ("1+", BAD, 0.3, 0.18)],
         ("Speculation does not pay at temperatures 0.7-1 and 1+ (38% of the draft tokens).", "bad")),
        ([("1+", BAD, 0.3, 1.0)], ("Speculation does not pay at temperature 1+ (100% of the draft tokens).", "bad")),
        ([("0", GOOD, 0.8, 0.9), ("1+", NONE, 0.1, 0.1)],
         ("Speculation pays at every temperature with enough traffic.", "good")),
    ],
)  # fmt: skip
def test_by_acceptance(temperatures, expected):
    rows = [reports.temperature(label, verdict, rate, share) for label, verdict, rate, share in temperatures]
    assert said(reports.model(*rows)) == expected
    judged = [f"{rate:.0%} at T {label}" for label, verdict, rate, _ in temperatures if verdict is not NONE]
    assert why(reports.model(*rows)) == f"Acceptance rate by temperature: {', '.join(judged)}."


def test_a_share_is_of_one_window_whichever_each_temperature_was_judged_over():
    """One was judged over five minutes, the other over an hour."""
    rows = [
        reports.temperature("0.7-1", BAD, 0.3, 0.87),
        reports.temperature("1+", BAD, 0.3, 0.13, judgement=reports.judgement(BAD, 0.3, share=0.9)),
    ]
    expected = "Speculation does not pay at temperatures 0.7-1 and 1+ (100% of the draft tokens)."
    assert said(reports.model(*rows)) == (expected, "bad")


def test_where_plain_decoding_was_measured_it_answers_in_milliseconds():
    model = reports.timed_model(
        reports.timed("0-0.3", GOOD, 0.44, 45, 27),
        reports.timed("0.5-0.7", GOOD, 0.4, 45, 35),
        reports.timed("1+", BAD, 0.24, 45, 49.1),
    )
    assert said(model) == (
        (
            "Per token, speculation saves 18 ms at T 0-0.3, 10 ms at T 0.5-0.7; costs 4.1 ms at T 1+, "
            "with 9 requests running."
        ),
        "bad",
    )
    assert why(model).startswith(
        "Speedup over decoding without speculation: 1.67 at T 0-0.3, 1.29 at T 0.5-0.7, 0.92 at T 1+."
    )


def test_what_is_within_its_error_breaks_even():
    model = reports.timed_model(reports.timed("1+", EVEN, 0.24, 45, 44))
    assert said(model) == ("Per token, speculation roughly breaks even at T 1+, with 9 requests running.", "even")


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (BAD, ("Speculation does not pay on average.", "bad")),
        (EVEN, ("Speculation roughly breaks even on average.", "even")),
        (GOOD, ("Speculation pays on average.", "good")),
        (NONE, ("Not enough traffic for a verdict.", "mute")),
    ],
)
def test_without_a_split_it_answers_for_all_requests(verdict, expected):
    model = reports.model(judgement=reports.judgement(verdict, 0.5))
    assert said(model) == expected
    reason = why(model, plugin=reports.NEVER_CONNECTED)
    assert reason.startswith("The acceptance rate over all requests is 50%. No plug-in has connected yet,")


def test_a_verdict_on_drafts_says_how_few_of_the_steps_have_one():
    seldom = replace(speed := reports.speed(withheld=Withheld.NO_REFERENCE), steps=speed.steps._replace(drafts=120.0))
    hot = reports.temperature("1+", GOOD, 0.7)
    assert said(reports.model(hot, speed=seldom)) == (
        "Speculation pays at every temperature with enough traffic, but only 13% of the steps have a draft.", "good"
    )  # fmt: skip
    assert said(reports.model(speed=seldom))[0] == (
        "Speculation pays on average, but only 13% of the steps have a draft."
    )


def test_without_a_split_but_with_a_baseline():
    text = "Speculation saves 10 ms per token on average, with 9 requests running."
    assert said(reports.timed_model()) == (text, "good")
    assert why(reports.timed_model()).startswith(
        "Decoding is 1.50 ± 0.02 times as fast as without speculation. The acceptance rate over all requests is 50%."
    )


def test_of_several_models_the_worst_is_named():
    good = reports.model(name="a", judgement=reports.judgement(GOOD, 0.9))
    bad = reports.model(name="b", judgement=reports.judgement(BAD, 0.3))
    assert said(good, bad) == ("b: Speculation does not pay on average.", "bad")
    assert why(good, bad).startswith("The acceptance rate over all requests is 30%.")


def test_a_fault_is_no_hot_traffic():
    fault = reports.judgement(BAD, 0.01, has_collapsed=True)
    model = reports.model(reports.temperature("0", BAD, 0.01), judgement=fault)
    assert said(model) == ("Almost no draft tokens are accepted.", "bad")
    assert why(model).endswith("Restart vLLM, and check that the draft model matches the target model.")


@pytest.mark.parametrize(
    "speculation", [Speculation("eagle3", 6, adaptive_verification=True), Speculation("dflash", 15)]
)
def test_with_adaptive_verification_or_drafts_in_one_pass_acceptance_is_no_answer(speculation):
    judged = reports.judgement(NONE, 0.17, speculation=speculation)
    hot = reports.temperature("1+", NONE, 0.17)
    model = reports.model(hot, judgement=judged, speed=reports.speed(withheld=Withheld.NO_REFERENCE))
    text = "The acceptance rate does not tell whether speculation pays here, and no speedup is known."
    assert said(model) == (text, "mute")
    assert why(model) == "The acceptance rate over all requests is 17%."  # which is no matter of too little traffic
