"""The sentence at the top of the page."""

from dataclasses import replace

import pytest

from sidecar.analysis.advice import Direction, TokensAdvice
from sidecar.analysis.endings import EndingAt, EndingChange, EndingsReport, Reference
from sidecar.analysis.engine.cache import CacheWindow
from sidecar.analysis.evidence import Evidence, Loops
from sidecar.analysis.judgement import Undecided, Verdict
from sidecar.analysis.speed.estimate import Estimate, Unsized
from sidecar.analysis.speed.withheld import Withheld
from sidecar.engine.names import Gauge
from sidecar.errors import Unreachable
from sidecar.findings.ending import EndsBadly
from sidecar.findings.lower_acceptance import LowerAcceptance
from sidecar.findings.not_speculating import NotSpeculating
from sidecar.findings.number_of_tokens import NumberOfTokens
from sidecar.findings.one_engine import ONE_ENGINE
from sidecar.requests.messages import Speculation
from sidecar.settings.baselines import PlainStepTimes
from sidecar.wording.answer import answer
from sidecar.wording.notes import (
    hints,
    judgement_note,
    model_notes,
    resting_loads,
    undrafted_sentence,
)
from sidecar.wording.verdicts import verdict_words
from tests.analysis.staged_findings import PREEMPTING
from tests.analysis.test_checklist import GOOD as SUITS
from tests.analysis.test_checklist import LIGHT
from tests.export.reports import (
    NEVER_CONNECTED,
    NOW,
    OBSERVING,
    down,
    engine,
    judgement,
    model,
    plain_model,
    report,
    speed,
    temperature,
    timed,
    timed_model,
    window,
)

STEPS = PlainStepTimes(running=(1.0,), seconds=(0.02,), context=100.0, drift=0.05)
GOOD = Verdict.NET_POSITIVE
EVEN = Verdict.BREAK_EVEN
BAD = Verdict.NET_NEGATIVE
NONE = Verdict.INSUFFICIENT_DATA
RULED = "Not measured; by the rule of thumb, speculation"
WINS = f"{RULED} pays at every temperature with enough data"
BY_SIZES = "By the sizes of the models, this load breaks even"
LOSES = f"{RULED} does not pay at"
BY_BASELINE = (
    "what it saves or costs, on a vLLM without --speculative-config: `specdec-sidecar baseline"
    " --url URL --plugin-socket PATH --load 1,2,4,8,16 --out baseline.yaml` (docs/measure.md)."
)
MEASURE = f" Before you turn it off, measure {BY_BASELINE}"


def text_and_tone(*models):
    sentence = answer(report(*models))
    return sentence.text, sentence.tone


@pytest.mark.parametrize(
    ("dated", "since"),
    [
        (((BAD, 7200, None), (BAD, 60, GOOD), (GOOD, 30, BAD)),
         "Verdict since 20:13 UTC (2.0 h)."),
        (((BAD, 600, GOOD), (GOOD, 7200, None)), "Since 22:03 UTC (10 min); before: pays."),
        (((GOOD, 600, BAD), (GOOD, 7200, None)),
         "Since 22:03 UTC (10 min); before: does not pay."),
        (((GOOD, 210, None),), "Verdict since 22:09 UTC (4 min)."),
        (((GOOD, 90000, None),), "Verdict since 13 Nov 21:13 UTC (25.0 h)."),
        (((GOOD, None, None),), ""),
        (((NONE, 60, None),), ""),
    ],
)  # fmt: skip
def test_the_answer_says_since_when_the_worst_of_it_holds(dated, since):
    """Of several losses since the first, of gains since all of them; not before it was known."""
    rows = []
    for place, (verdict, ago, was) in enumerate(dated):
        row = timed(str(place), verdict, 0.5, 30, 15)
        at = None if ago is None else NOW - ago
        rows.append(replace(row, judgement=replace(row.judgement, since=at, was=was)))
    assert answer(report(timed_model(*rows))).since == since


@pytest.mark.parametrize(
    ("losing", "whole", "says"),
    [
        (1, GOOD, " But it does not pay on engine 0."),
        (2, GOOD, " But it does not pay on engines 0, 1."),
        (4, GOOD, " But it does not pay on 4 of 5 engines."),
        (0, GOOD, ""),
        (5, BAD, ""),
    ],
)
def test_engines_that_lose_are_named_where_the_model_as_a_whole_does_not(losing, whole, says):
    engines = [
        engine(
            index=str(number),
            judgement=judgement(BAD if number < losing else GOOD, 0.5, by_speedup=True),
        )
        for number in range(5)
    ]
    judged = judgement(whole, 0.5, by_speedup=True)
    found = answer(report(timed_model(judgement=judged, engines=tuple(engines))))
    assert found.text.partition(".")[2] == says
    # Where the model as a whole gains, nothing is as bad.
    assert found.tone == ("bad" if whole is BAD else "even" if says else "good")


ODD = LowerAcceptance(
    code=ONE_ENGINE.code,
    group="1",
    rate=0.3,
    others=0.6,
    error=0.02,
    loses=False,
    break_even=None,
)
FEWER = TokensAdvice(direction=Direction.FEWER, now=3, best=1, acceptance=0.3, next_rate=0.2)


@pytest.mark.parametrize(
    ("whole", "says", "tone"),
    [
        (GOOD, "But engine 1 accepts 30%, the others 60%.", "even"),
        (BAD, "Also, engine 1 accepts 30%, the others 60%.", "bad"),
        (None, "Also, engine 1 accepts 30%, the others 60%.", "even"),  # by the rule of thumb
    ],
)
def test_the_one_engine_that_accepts_less_is_named_and_makes_no_loss_look_better(whole, says, tone):
    judged = judgement(whole or BAD, 0.3, by_speedup=whole is not None)
    made = timed_model if whole else model
    found = answer(report(made(judgement=judged, findings=(ODD,))))
    assert found.text.endswith(says)
    assert found.tone == tone


def named(name, whole):
    judged = judgement(whole, 0.5, by_speedup=True)
    actual = {GOOD: 30, EVEN: 35, BAD: 40}[whole]
    row = timed("0", whole, 0.5, 35, actual)
    return replace(timed_model(row, judgement=judged), model_name=name)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ((GOOD,), "On b it pays."),
        ((GOOD, GOOD, GOOD), "On b, c and d it pays."),
        ((GOOD, EVEN), "On b it pays."),
        ((EVEN,), ""),
        ((GOOD,) * 4, "On 4 other models it pays."),
        ((BAD, GOOD, BAD), "On c it pays. On b and d it does not pay."),
    ],
)
def test_while_one_model_loses_those_that_pay_are_named(others, says):
    """Last: what comes before is about the one that loses."""
    models = [named("a", BAD), *map(named, "bcde", others)]
    found = answer(report(*models))
    assert found.text.startswith("a: Speculation does not pay")
    assert found.others == says
    assert found.why.endswith(says)
    assert says in found.why_beside_rows


def test_by_the_rule_of_thumb_the_former_words_are_those_of_the_rule():
    judged = replace(judgement(BAD, 0.3), since=NOW - 60, was=GOOD)
    assert answer(report(model(judgement=judged))).since == (
        "Since 22:12 UTC (60 s); before: high acceptance, not measured."
    )


def why(*models, **changes):
    return answer(report(*models, **changes)).why


def test_a_sidecar_beside_a_headless_vllm_says_so():
    """Its plug-ins connect, and vLLM was said to be down."""
    never = replace(down(Unreachable("x")), last_scrape=None)
    headless = answer(report(plugin=OBSERVING, scrape=never)).why
    restarted = answer(report(plugin=OBSERVING, scrape=down(Unreachable("x")))).why
    alone = answer(report(plugin=NEVER_CONNECTED, scrape=never)).why

    assert "The plug-in of engine 0 is connected all the same. If this is a headless" in headless
    assert "headless" not in restarted + alone


def test_nothing_is_drafted():
    """Idle, asleep, paused, not speculating and not configured are told apart."""
    idle = model(judgement=judgement(NONE), engines=(engine(gauges={}),))
    running = model(judgement=judgement(NONE))
    waiting = {Gauge.REQUESTS_WAITING: 3.0}
    paused = model(judgement=judgement(NONE), engines=(engine(gauges=waiting),))
    asleep = model(
        judgement=judgement(NONE), engines=(engine(gauges={**waiting, Gauge.AWAKE: 0.0}),)
    )
    broken = model(
        judgement=judgement(NONE), findings=(NotSpeculating(engines=("0",), tokens=5000.0),)
    )
    plain = plain_model()
    assert text_and_tone(idle) == ("vLLM is idle.", "mute")
    assert text_and_tone() == ("vLLM has counted nothing yet.", "mute")
    assert text_and_tone(idle, plain) == ("vLLM decodes without drafts.", "mute")
    assert text_and_tone(running) == ("vLLM decodes without drafts.", "mute")
    assert text_and_tone(paused) == ("Requests wait, and none runs.", "even")
    assert text_and_tone(asleep) == ("vLLM is asleep.", "even")
    assert text_and_tone(broken) == ("vLLM is configured to speculate and does not.", "bad")
    assert text_and_tone(plain) == ("This vLLM does not speculate.", "mute")
    assert "without --speculative-config" in why(plain)


@pytest.mark.parametrize(
    ("for_room", "says"),
    [
        (0.0, ("3 requests waiting for another server, an adapter or a grammar, as vLLM says"
              " (deferred).")),
        (3.0, ("3 requests waiting for room: vLLM is paused, other servers still hold its KV cache,"
              " or it hangs.")),
        (1.0, ("1 request waiting for room: vLLM is paused, other servers still hold its KV cache,"
              " or it hangs. 2 requests waiting for another server, an adapter or a grammar, as"
              " vLLM says (deferred).")),
        (None, "3 requests waiting: vLLM is paused, they wait for another server, or it hangs."),
    ],
)  # fmt: skip
def test_requests_that_vllm_has_deferred_are_no_sign_of_a_hang(for_room, says):
    """On a decode pod that waits for a KV cache, the page said that vLLM hangs."""
    gauges = {Gauge.REQUESTS_WAITING: 3.0}
    if for_room is not None:
        gauges[Gauge.WAITING_FOR_CAPACITY] = for_room
    waiting = model(judgement=judgement(NONE), engines=(engine(gauges=gauges),))

    assert text_and_tone(waiting) == ("Requests wait, and none runs.", "even")
    assert why(waiting) == says


def test_of_several_models_that_do_not_speculate_one_whose_requests_are_known_is_judged():
    """The first of them, wherever the plug-in is missing beside another."""
    unknown = plain_model(name="first")
    known = plain_model(replace(SUITS, requests=41), LIGHT, name="second")
    other = plain_model(replace(SUITS, requests=42), LIGHT, name="third")

    assert "Judging by 41 requests in 10 min, speculation is worth a try" in why(
        unknown, known, other
    )
    assert "that takes what a plug-in reports of its requests." in why(unknown)


LOW_BY_RULE = "Not measured; the acceptance rate is low by the rule of thumb at"
HOT_SHARE = "temperature 0.7-1, which has 50% of the draft tokens."


@pytest.mark.parametrize(
    ("estimated", "text", "says"),
    [
        (Estimate(low=0.031, high=0.283), f"{LOW_BY_RULE} {HOT_SHARE}",
         f"{BY_SIZES} somewhere from 3% to 28% accepted. 42% is above that, so it may well pay."),
        (Estimate(low=0.2, high=0.5), f"{LOSES} {HOT_SHARE}",
         f"{BY_SIZES} somewhere from 20% to 50% accepted; measure to know."),
        # As it is printed, 42% is not above 42%.
        (Estimate(low=0.2, high=0.416), f"{LOSES} {HOT_SHARE}",
         f"{BY_SIZES} somewhere from 20% to 42% accepted; measure to know."),
        (Estimate(low=0.5, high=0.8), f"{LOSES} {HOT_SHARE}",
         (f"{BY_SIZES} somewhere from 50% to 80% accepted. 42% is below that, so it probably does"
         " not pay.")),
        (Estimate(low=1.1, high=2.0), f"{LOSES} {HOT_SHARE}",
         f"{BY_SIZES} at no acceptance rate, so speculation probably does not pay."),
        (Estimate(unsized=Unsized.SIZES), f"{LOSES} {HOT_SHARE}", ""),
        (None, f"{LOSES} {HOT_SHARE}", ""),
    ],
)  # fmt: skip
def test_what_is_not_measured_has_an_estimate_by_the_sizes_beside_it(estimated, text, says):
    """The text does not contradict it: hot traffic was red, and 1.47 times as fast."""
    hot = temperature("0.7-1", BAD, 0.42)
    without = answer(report(model(hot, judgement=judgement(BAD, 0.42))))
    shown = answer(report(model(hot, judgement=judgement(BAD, 0.42), estimate=estimated)))

    assert (shown.text, shown.tone) == (text, "even")
    assert shown.reason == f"{says} {without.reason}".strip()


@pytest.mark.parametrize(
    ("verdict", "rate", "estimated", "expected"),
    [
        (BAD, 0.42, (0.03, 0.28), ("low", "even")),
        (EVEN, 0.55, (0.03, 0.28), ("medium", "even")),
        (EVEN, 0.55, (0.6, 0.9), ("medium", "even")),
        (GOOD, 0.7, (1.1, 2.0), ("high", "even")),
        (EVEN, 0.55, (0.3, 0.6), (None, "even")),
        (GOOD, 0.7, (0.03, 0.28), (None, "likely")),
        (BAD, 0.42, (0.6, 0.9), (None, "even")),
    ],
)
def test_a_guess_that_the_sizes_contradict_is_only_told_as_a_rate(
    verdict, rate, estimated, expected
):
    """With a split or without one; and it has no good colour."""
    low, high = estimated
    judged = judgement(verdict, rate)
    sizes = Estimate(low=low, high=high)
    word, tone = expected
    whole = answer(report(model(judgement=judged, estimate=sizes)))
    part = temperature("0", verdict, rate)
    split = answer(report(model(part, judgement=judged, estimate=sizes)))

    for said in (whole, split):
        assert said.tone == tone
        rated = f"Not measured; the acceptance rate is {word} by the rule of thumb "
        assert said.text.startswith(rated if word else RULED)


def test_of_several_temperatures_all_must_be_above_what_breaks_even():
    sizes = Estimate(low=0.03, high=0.28)
    hot, hotter = temperature("0.7-1", BAD, 0.42), temperature("1+", BAD, 0.3)
    above = answer(report(model(hot, hotter, judgement=judgement(BAD, 0.4), estimate=sizes)))
    across = answer(
        report(
            model(
                *(hot, temperature("1+", BAD, 0.25)),
                judgement=judgement(BAD, 0.4),
                estimate=sizes,
            )
        )
    )

    assert "28% accepted. 30% to 42% is above that, so it may well pay." in above.reason
    assert above.text.startswith(LOW_BY_RULE)
    assert "28% accepted; measure to know." in across.reason
    assert across.text.startswith(LOSES)


def test_where_the_sizes_do_not_tell_a_note_says_why():
    """But not that a hello has none."""
    unsized = {why: hints(model(estimate=Estimate(unsized=why))) for why in Unsized}
    said = {why for why, notes in unsized.items() if "not estimated" in " ".join(notes)}

    assert said == {Unsized.LAYERS, Unsized.EXPERTS, Unsized.METHOD, Unsized.CPU}


@pytest.mark.parametrize(
    ("seconds", "baseline", "tone"),
    [(20.0, STEPS, "mute"), (90.0, STEPS, "likely"), (20.0, None, "likely")],
)
def test_just_after_the_start_it_waits_for_the_time_that_will_decide(seconds, baseline, tone):
    """Within 20 s, the demo's answer turned from mute to good, even, good, bad and even."""
    seen = replace(window(0.8), seconds=seconds)
    judged = judgement(GOOD, 0.8)
    judged = replace(judged, evidence=replace(judged.evidence, window=seen))
    soon = speed(withheld=Withheld.TOO_LITTLE)
    starting = model(judgement=judged, speed=soon, plain_steps=baseline)

    assert answer(report(starting)).tone == tone


@pytest.mark.parametrize(
    ("temperatures", "expected"),
    [
        ([("0", GOOD, 0.8, 0.6), ("0.7-1", GOOD, 0.7, 0.4)], (f"{WINS}.", "likely")),
        ([("0", GOOD, 0.8, 0.9), ("1+", NONE, 0.1, 0.1)], (f"{WINS}.", "likely")),
        ([("0", GOOD, 0.8, 0.6), ("0.7-1", EVEN, 0.6, 0.4)],
         (f"{RULED} roughly breaks even at temperature 0.7-1.", "even")),
        ([("0", GOOD, 0.8, 0.62), ("0.7-1", BAD, 0.4, 0.2), ("1+", BAD, 0.3, 0.18)],
         (f"{LOSES} temperatures 0.7-1 and 1+, which have 38% of the draft tokens.", "even")),
        ([("1+", BAD, 0.3, 1.0)],
         (f"{LOSES} temperature 1+.", "even")),
    ],
)  # fmt: skip
def test_by_acceptance_it_names_the_temperatures_that_lose(temperatures, expected):
    """One with too little traffic for a verdict spoils no good answer."""
    split = model(
        *(temperature(label, verdict, rate, share) for label, verdict, rate, share in temperatures)
    )
    assert text_and_tone(split) == expected
    judged = [
        f"{rate:.0%} at T {label}"
        for label, verdict, rate, _ in temperatures
        if verdict is not NONE
    ]
    measure = MEASURE if any(verdict is BAD for _, verdict, *_ in temperatures) else ""
    listed = f"Acceptance rate by temperature: {', '.join(judged)}."
    assert why(split) == f"{measure} {listed}".strip()


def test_a_measured_loss_is_told_without_one_by_the_rule_of_thumb():
    measured = temperature("0", BAD, 0.4, 0.6, judgement=judgement(BAD, 0.4, by_speedup=True))
    both = model(measured, temperature("1+", BAD, 0.3, 0.4))

    assert text_and_tone(both) == (
        "Speculation does not pay at temperature 0, which has 60% of the draft tokens.", "bad"
    )  # fmt: skip
    sized = replace(both, estimate=Estimate(low=0.03, high=0.28))
    assert text_and_tone(sized) == text_and_tone(both)
    assert "may well pay" not in why(sized)


def test_temperatures_that_pay_are_no_answer_where_all_requests_together_lose():
    """Those that lose had too little traffic for a verdict of their own, or none lately."""
    split = model(
        temperature("0", GOOD, 0.8), temperature("1+", NONE, 0.1), judgement=judgement(BAD, 0.4)
    )
    assert text_and_tone(split) == (
        f"{RULED} does not pay on average.",
        "even",
    )
    assert (
        why(split)
        == f"The acceptance rate over all requests is 40%.{MEASURE} Acceptance rate by temperature:"
        " 80% at T 0."
    )


def test_by_the_rule_of_thumb_fewer_tokens_come_before_a_measurement_and_that_before_none():
    """Both are on the screen, so their order is said."""
    fewer = NumberOfTokens(code="too_many_tokens", tokens=FEWER)
    lost = model(temperature("1+", BAD, 0.3), findings=(fewer,))
    assert "First try fewer draft tokens; before you turn it off, measure" in why(lost)


def test_a_share_is_of_one_window_whichever_each_temperature_was_judged_over():
    """One was judged over five minutes, the other over an hour."""
    over_an_hour = temperature("1+", BAD, 0.3, 0.13, judgement=judgement(BAD, 0.3, share=0.9))
    recent = temperature("0.7-1", BAD, 0.3, 0.5)
    assert text_and_tone(model(temperature("0", GOOD, 0.8, 0.37), recent, over_an_hour)) == (
        f"{LOSES} temperatures 0.7-1 and 1+, which have 63% of the draft tokens.", "even"
    )  # fmt: skip


def test_where_plain_decoding_was_measured_it_answers_in_milliseconds():
    """By temperature, the losses first; the ratios are the reason below."""
    warm, hot = timed("0.5-0.7", GOOD, 0.4, 45, 35), timed("1+", BAD, 0.24, 45, 49.1)
    split = timed_model(timed("0-0.3", GOOD, 0.44, 45, 27), warm, hot)
    times = "costs 4.1 ms at T 1+; saves 18 ms at T 0-0.3, 10 ms at T 0.5-0.7"
    assert text_and_tone(split) == (f"Speculation loses in part: per token, it {times}.", "even")
    ratios = "1.67 ± 0.02 at T 0-0.3, 1.29 ± 0.02 at T 0.5-0.7, 0.92 ± 0.02 at T 1+."
    load = "at the same load, with 9 requests running."
    measured = f"Measured with prefill, against decoding without speculation {load}"
    ratios = f"Speedup over decoding without speculation: {ratios}"
    assert why(split).startswith(f"{measured} {ratios}")
    assert text_and_tone(timed_model(timed("1+", EVEN, 0.24, 45, 44))) == (
        "Speculation breaks even at T 1+.", "even"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "verdicts", "says"),
    [
        (BAD, (BAD, BAD), "does not pay: per token, it costs 5 ms at T 0, 5 ms at T 1."),
        (
            BAD,
            (BAD, GOOD),
            "does not pay on the whole: per token, it costs 5 ms at T 0; saves 5 ms at T 1.",
        ),
        (NONE, (BAD, BAD), "loses in part: per token, it costs 5 ms at T 0, 5 ms at T 1."),
        (
            GOOD,
            (NONE, BAD),
            "loses in part: per token, it costs 5 ms at T 1; is undecided at T 0.",
        ),
        (GOOD, (BAD,), "loses in part: per token, it costs 5 ms at T 0."),
        (GOOD, (GOOD, GOOD), "pays: per token, it saves 5 ms at T 0, 5 ms at T 1."),
        (GOOD, (GOOD, EVEN), "pays in part: per token, it saves 5 ms at T 0; breaks even at T 1."),
        (GOOD, (GOOD, NONE), "pays in part: per token, it saves 5 ms at T 0; is undecided at T 1."),
        (NONE, (GOOD,), "pays in part: per token, it saves 5 ms at T 0."),
        (EVEN, (EVEN, EVEN), "breaks even at T 0, 1."),
    ],
)
def test_the_answer_begins_with_the_words_of_all_requests_verdict(whole, verdicts, says):
    """It is no other than that of the row below it, or says "in part"."""
    actual = {GOOD: 30, EVEN: 35, BAD: 40, NONE: 35}
    rows = [timed(str(place), each, 0.5, 35, actual[each]) for place, each in enumerate(verdicts)]
    judged = judgement(whole, 0.5, by_speedup=True)
    found = answer(report(timed_model(*rows, judgement=judged)))
    assert found.text == f"Speculation {says}"
    assert ("faster without --speculative-config" in found.reason) is (whole is BAD)
    breaks_even = set(verdicts) == {EVEN}
    assert ("would take about as long" in found.reason) is breaks_even


def test_a_measured_loss_says_what_is_faster_also_without_temperatures():
    lost = judgement(BAD, 0.5, by_speedup=True)
    slower = timed_model(judgement=lost, speed=speed(30.0, 40.0))
    assert "faster without --speculative-config" in answer(report(slower)).reason


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (BAD, (f"{RULED} does not pay on average.", "even")),
        (EVEN, (f"{RULED} roughly breaks even on average.", "even")),
        (GOOD, (f"{RULED} pays on average.", "likely")),
        (NONE, ("Not enough traffic for a verdict.", "mute")),
    ],
)
def test_without_a_split_it_answers_for_all_requests(verdict, expected):
    """And says why there is no split."""
    whole = model(judgement=judgement(verdict, 0.5))
    assert text_and_tone(whole) == expected
    reason = "The acceptance rate over all requests is 50%. No plug-in has connected yet,"
    assert why(whole, plugin=NEVER_CONNECTED).startswith(reason)


def test_where_no_verdict_is_certain_yet_it_says_what_would_decide_it():
    """There is traffic enough, so that would be no reason."""
    undecided = Undecided(rate=0.48, error=0.02, seconds=1800.0, line=0.5, needed=None)
    judged = judgement(NONE, 0.47, judged=window(0.47), undecided=undecided)
    whole = model(judgement=judged)
    certain = "it is not certain whether speculation pays."

    assert text_and_tone(whole) == (f"Not measured; by the rule of thumb, {certain}", "mute")
    assert why(whole, plugin=NEVER_CONNECTED).startswith(
        "Undecided: the acceptance rate of the last 30 min, 48% ± 4%,"
    )

    hot = replace(temperature("1+", NONE, 0.5), judgement=judged)
    assert why(model(hot, judgement=judged)).endswith(
        f"At temperature 1+ it is undecided. Measure {BY_BASELINE}"
    )


def test_temperatures_that_are_undecided_are_told_beside_those_that_pay():
    """To say that it pays at every temperature with enough traffic would be wrong."""
    undecided = Undecided(rate=0.62, error=0.02, seconds=1800.0, line=0.65, needed=None)
    judged = judgement(NONE, 0.62, judged=window(0.62), undecided=undecided)
    hot = replace(temperature("1+", NONE, 0.62), judgement=judged)
    split = model(temperature("0", GOOD, 0.8), hot)

    assert text_and_tone(split) == (f"{RULED} pays at temperature 0.", "likely")
    assert why(split) == (
        "At temperature 1+ it is undecided. Acceptance rate by temperature: 80% at T 0."
    )


def test_a_temperature_whose_speedup_is_undecided_does_not_pay_by_the_rule_of_another_one():
    """Its row says undecided."""
    leans = timed("0", NONE, 0.6, 45, 46)
    split = model(leans, temperature("0.5-0.7", GOOD, 0.8))

    assert leans.judgement.leans
    assert text_and_tone(split) == (f"{RULED} pays at temperature 0.5-0.7.", "likely")
    assert why(split).startswith("At temperature 0 it is undecided.")


def test_the_rate_beside_a_verdict_is_of_the_window_that_was_judged():
    """Over the last five minutes it was another than over the hour."""
    whole = model(judgement=judgement(GOOD, 0.2, judged=window(0.7)))
    assert why(whole, plugin=NEVER_CONNECTED).startswith(
        "The acceptance rate over all requests is 70%."
    )


def test_the_reason_has_the_rate_without_repetition_loops_where_they_matter():
    loops = Loops(rate=0.98, share=0.18, whole=0.71, without=0.62)
    seen = Evidence(window=window(0.7), loops=loops)
    whole = model(judgement=judgement(GOOD, 0.7, evidence=seen))

    assert why(whole, plugin=NEVER_CONNECTED).startswith(
        "The acceptance rate over all requests is 70% (62% without repetition loops). "
    )


def test_without_a_split_but_with_a_baseline_it_answers_in_milliseconds():
    """On average over all requests, on each of the engines."""
    text = "Speculation pays: it saves 10 ms per token on average, with 9 requests running."
    assert text_and_tone(timed_model()) == (text, "good")
    assert text_and_tone(timed_model(engines=(engine(), engine(index="1")))) == (
        f"{text[:-1]} on each of 2 engines.",
        "good",
    )
    assert why(timed_model()).startswith(
        "With prefill, decoding is 1.50 ± 0.02 times as fast as without speculation. The acceptance"
        " rate over all requests is 50%."
    )


def test_a_verdict_on_drafts_says_how_few_of_the_steps_have_one():
    """As with n-gram: it pays where it drafts, which is seldom."""
    engine = speed(withheld=Withheld.NO_REFERENCE)
    seldom = replace(engine, steps=engine.steps._replace(drafts=120.0))
    share = "only 13% of all requests' steps have a draft."
    hot = temperature("1+", GOOD, 0.7)
    assert text_and_tone(model(hot, speed=seldom)) == (f"{WINS}; {share}", "likely")
    assert text_and_tone(model(speed=seldom)) == (
        f"{RULED} pays on average; {share}",
        "likely",
    )


def test_a_schedule_that_drafts_nothing_at_some_loads_is_named_where_steps_have_no_draft():
    """Known from what the plug-in says that vLLM made of its options."""
    rests = Speculation("eagle3", 3, schedule=((1, 8, 3), (9, 256, 0)))
    scheduled = engine(speculation=rests)
    assert why(model(judgement=judgement(NONE), engines=(scheduled,))).startswith(
        "No draft tokens in the window. After a start of vLLM or of the sidecar it takes two polls"
        " to see any; vLLM's schedule by batch size drafts none with 9 or more requests running,"
    )

    steps = speed()
    seldom = replace(steps, steps=steps.steps._replace(drafts=230.0))
    said = undrafted_sentence(model(speed=seldom, engines=(scheduled,)))
    assert said == (
        "75% of all requests' steps had no draft: vLLM's schedule by batch size drafts none with"
        " 9 or more requests running."
    )
    assert said in model_notes(model(speed=seldom, engines=(scheduled,)))
    assert not undrafted_sentence(model(speed=steps, engines=(scheduled,)))
    assert not undrafted_sentence(model(speed=seldom))

    gap = replace(rests, schedule=((1, 4, 3), (5, 8, 0), (17, 64, 1)))
    assert resting_loads((engine(speculation=gap),)) == "5 to 16"  # the one before goes on


def test_of_several_models_the_worst_is_named():
    good = model(name="a", judgement=judgement(GOOD, 0.9))
    bad = model(name="b", judgement=judgement(BAD, 0.3))
    assert text_and_tone(good, bad) == (
        "b: Not measured; by the rule of thumb, speculation does not pay on average.",
        "even",
    )
    assert why(good, bad).startswith("The acceptance rate over all requests is 30%.")


def test_a_collapse_is_told_from_hot_traffic():
    collapsed = model(
        temperature("0", BAD, 0.01), judgement=judgement(BAD, 0.01, has_collapsed=True)
    )
    text = "Almost no draft tokens are accepted, and replies may be wrong."
    assert text_and_tone(collapsed) == (text, "bad")
    assert why(collapsed).endswith("check that the draft was made for this target.")
    # Nothing else on the page refutes that: fewer tokens mend no fault.
    (bucket,) = collapsed.temperatures
    assert judgement_note(collapsed.judgement) == ""
    assert judgement_note(bucket.judgement, collapsed.judgement) == ""
    assert "fewer tokens" in judgement_note(bucket.judgement, judgement(BAD, 0.3))


def test_n_gram_drafts_that_are_never_accepted_need_no_restart():
    """Its finding says to draft with a model or not at all, and no restart changes the text."""
    judged = judgement(BAD, 0.01, has_collapsed=True)
    pods_engine = engine(speculation=Speculation("ngram", 3))
    said = why(model(temperature("0", BAD, 0.01), engines=(pods_engine,), judgement=judged))

    assert said.endswith("draft with a model, or remove --speculative-config.")
    assert "Restart" not in said


def worse(ending, share=0.4):
    """More replies than on this pod before end so."""
    change = EndingChange(
        ending=ending,
        share=share,
        usual=0.02,
        standard_errors=12.0,
        odds_ratio=30.0,
        requests=120,
        reference=Reference.PAST,
    )
    shares = {"normal": 1 - share, "loop": 0.0, "empty": 0.0, ending: share}
    return EndingsReport(requests=120, shares=shares, changes={ending: change})


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("loop", "More replies than usual repeat themselves until they are cut off."),
        ("empty", "More replies than usual are empty (at most one token)."),
    ],
)
def test_broken_replies_come_before_a_speed_that_they_flatter(ending, said):
    """Loops are easy to draft, so a broken model looks fast."""
    wins = temperature("0", GOOD, 0.8)
    wins = replace(wins, judgement=replace(wins.judgement, since=NOW - 660))
    broken = model(wins, endings=worse(ending))

    assert text_and_tone(broken) == (said, "bad")
    assert answer(report(broken)).is_fault
    assert answer(report(broken)).since == ""  # that of the speed is not of the replies
    assert why(broken).startswith(
        f"Send one prompt to this pod and read the reply. As for the speed: {WINS}."
    )


def test_the_headline_names_the_temperatures_where_replies_have_changed():
    place = EndingAt(temperature="0", requests=40, share=0.6, usual=0.01)
    endings = replace(worse("loop"), temperatures={"loop": (place,)})

    assert text_and_tone(model(temperature("0", GOOD, 0.8), endings=endings)) == (
        "More replies than usual at temperature 0 repeat themselves until they are cut off.",
        "bad",
    )


EMPTY = EndsBadly(
    code="empty_replies", ending="empty", share=0.51, requests=120, change=None, is_advice=False
)
SO_MANY_EMPTY = (
    "Of the last replies, 51% are empty (at most one token): whether that is right is not known."
)


def test_a_large_share_of_bad_replies_that_nobody_measured_is_in_the_headline_beside_the_speed():
    """It may be right so: a model that repeats itself does so without speculation, too."""
    broken = model(temperature("0", GOOD, 0.8), findings=(EMPTY,))
    some = model(temperature("0", GOOD, 0.8), findings=(replace(EMPTY, share=0.08),))

    also = f"o{SO_MANY_EMPTY[1:]}"
    assert text_and_tone(broken) == (f"{WINS}. But {also}", "even")
    assert why(broken).startswith("Send one prompt to this pod and read the reply.")
    assert text_and_tone(some) == (f"{WINS}.", "likely")


def test_bad_replies_of_both_kinds_are_told_if_they_are_many_together():
    few = (
        EndsBadly(
            code="looping", ending="loop", share=0.12, requests=120, change=None, is_advice=False
        ),
        replace(EMPTY, share=0.09),
    )

    text, tone = text_and_tone(model(temperature("0", GOOD, 0.8), findings=few))

    assert tone == "even"
    assert text == (
        f"{WINS}. But of the last replies, 12% repeat themselves until they are cut off and 9% are"
        " empty (at most one token): whether that is right is not known."
    )


def test_a_pod_whose_every_reply_is_empty_is_not_called_idle():
    """It drafts nothing, since the first token comes from the prompt."""
    empty = replace(EMPTY, share=1.0)
    silent = model(temperature("0"), judgement=judgement(NONE), findings=(empty,))

    assert text_and_tone(silent) == (SO_MANY_EMPTY.replace("51%", "100%"), "even")
    assert why(silent) == "Send one prompt to this pod and read the reply."


def test_replies_that_end_as_usual_leave_the_answer_to_the_speed():
    usual = model(temperature("0", GOOD, 0.8), endings=worse("loop", share=0.03))

    assert text_and_tone(usual) == (f"{WINS}.", "likely")


@pytest.mark.parametrize(
    "speculation", [Speculation("eagle3", 6, adaptive_verification=True), Speculation("dflash", 15)]
)
def test_with_adaptive_verification_or_drafts_in_one_pass_acceptance_is_no_answer(speculation):
    """More traffic would not help, so it is not asked for."""
    judged = judgement(NONE, 0.17, speculation=speculation)
    judged = replace(judged, judged=judged.evidence.window)
    undecided = model(temperature("1+", NONE, 0.17), judgement=judged)
    text = (
        "The acceptance rate does not tell whether speculation pays here, and no speedup is known."
    )
    assert text_and_tone(undecided) == (text, "mute")
    # This is no matter of too little traffic.
    assert why(undecided) == (
        f"The acceptance rate over all requests is 17%. Measure {BY_BASELINE}"
    )
    assert verdict_words(judged) == "not measured"


def test_a_good_acceptance_rate_does_not_hide_that_requests_wait_for_room():
    """The rule of thumb knows no load, and a time per token no queue."""
    gauges = {Gauge.REQUESTS_RUNNING: 3.0, Gauge.WAITING_FOR_CAPACITY: 5.0}
    full = {Gauge.KV_CACHE_USAGE: 0.95}
    waits = engine(gauges=gauges | full)
    wins = temperature("0", GOOD)
    wins = replace(wins, judgement=replace(wins.judgement, since=NOW - 660))
    pressed = answer(report(model(wins, engines=(waits,))))
    assert pressed.tone == "even"
    assert pressed.since == "Verdict since 22:02 UTC (11 min)."
    assert pressed.text.endswith("But requests wait for KV cache.")
    assert "3 requests running, and 5 requests waiting for room" in pressed.why

    loses = temperature("1+", BAD, 0.3)
    hot = answer(report(model(temperature("0", GOOD), loses, engines=(waits,))))
    assert hot.text.startswith(f"{LOSES} temperature 1+")
    assert "wait" not in hot.text

    calm = answer(report(model(temperature("0", GOOD))))
    assert calm.tone == "likely"

    # What has just arrived waits for a step, which vLLM counts as for capacity.
    room = {Gauge.KV_CACHE_USAGE: 0.6}
    arrived = engine(gauges=gauges | room)
    assert answer(report(model(temperature("0", GOOD), engines=(arrived,)))).tone == "likely"
    # 24,000 tokens of 60,000 are free, and a request takes 30,000.
    long = CacheWindow(40, 1_000_000, 200_000, 1_000_000, 0, 0)
    large = engine(gauges=gauges | room, cache=long, kv_cache_capacity_tokens=60_000)
    assert answer(report(model(temperature("0", GOOD), engines=(large,)))).tone == "even"

    judged = judgement(GOOD, 0.8, by_speedup=True)
    quick = timed_model(timed("0", GOOD, 0.8, 35, 30), judgement=judged, engines=(waits,))
    assert text_and_tone(quick) == (
        "Speculation pays: per token, it saves 5 ms at T 0. But requests wait for KV cache.",
        "even",
    )
    one = {Gauge.REQUESTS_RUNNING: 3.0, Gauge.WAITING_FOR_CAPACITY: 1.0}
    preempts = engine(cache=PREEMPTING, gauges=one | room)
    pushed = timed_model(timed("0", GOOD, 0.8, 35, 30), judgement=judged, engines=(preempts,))
    assert answer(report(pushed)).text.endswith("But requests are preempted for lack of KV cache.")


def test_synthetic_acceptance_is_never_good_news():
    synthetic = Speculation("draft_model", 3, rejection_sample_method="synthetic")
    judged = judgement(GOOD, 0.93, speculation=synthetic)
    said = answer(report(model(temperature("0", GOOD), judgement=judged)))
    assert said.tone == "bad"
    assert said.text.startswith("vLLM accepts draft tokens at a set rate")
