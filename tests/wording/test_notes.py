"""The sentences on a judgement, its evidence and its advice."""

from dataclasses import replace

import pytest

from sidecar.analysis.advice import Advice, Direction, TokensAdvice
from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.evidence import Evidence, Loops
from sidecar.analysis.judgement import Gate, Undecided, Verdict
from sidecar.analysis.speed.withheld import Withheld
from sidecar.findings.load import Load
from sidecar.requests.messages import Configuration, Speculation
from sidecar.wording.advice import schedule_sentence, tokens_sentence
from sidecar.wording.answer import answer
from sidecar.wording.notes import (
    LIMITATIONS,
    caveats,
    hints,
    judgement_note,
    model_notes,
)
from tests.analysis.analysis_tools import faster
from tests.export.reports import (
    STRUCTURED,
    engine,
    judgement,
    model,
    report,
    speed,
    timed_model,
    window,
)

NEGATIVE, EVEN, POSITIVE = Verdict.NET_NEGATIVE, Verdict.BREAK_EVEN, Verdict.NET_POSITIVE
NONE = Verdict.INSUFFICIENT_DATA
OFF = "If the model as a whole loses, turn speculation off."
HOUR = "The acceptance rate is of the last 5 min, since the last 5 min had too little traffic."
TURN_OFF = "Turn speculation off (remove --speculative-config)."
SPECULATE_FEWER = "Speculate fewer tokens (num_speculative_tokens)."
FEWER_OR_OFF = (
    "Speculate fewer tokens (num_speculative_tokens), or turn speculation off (remove"
    " --speculative-config)."
)
SCHEDULED = Speculation("eagle3", 3, per_batch_size=True)
ADAPTIVE = Speculation("eagle3", 3, adaptive_verification=True)


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        (("min_requests", 20), "fewer than 20 requests (thresholds.min_requests)"),
        (
            ("min_drafts_per_second", 1.0),
            "fewer than 1 drafts a second (thresholds.min_drafts_per_second)",
        ),
        (
            ("min_bucket_share", 0.1),
            "less than 10% of the draft tokens (thresholds.min_bucket_share)",
        ),
    ],
)
def test_without_a_verdict_what_there_is_too_little_of_is_named_with_its_setting(gate, says):
    assert judgement_note(judgement(NONE, 0.3, gate=Gate(*gate))) == f"No verdict: {says}."


@pytest.mark.parametrize(
    ("verdict", "threshold", "sentence"),
    [
        (
            NEGATIVE,
            0.97,
            (
                'speedup is back above 0.97, but the verdict stays "does not pay" until it is half'
                " of its ± above it, at least 0.02,"
            ),
        ),
        (
            EVEN,
            1.05,
            (
                "speedup minus 2 standard errors is back above 1.05, but the verdict stays"
                ' "breaks even" below 1.07,'
            ),
        ),
    ],
)
def test_a_verdict_that_only_the_margin_keeps_says_when_it_rises(verdict, threshold, sentence):
    """Otherwise the page would show a speedup above the threshold and a verdict below it."""
    remedy = f" {SPECULATE_FEWER}" if verdict is NEGATIVE else ""
    held = judgement(verdict, 0.6, by_speedup=True, held_below=threshold)
    note = judgement_note(held, judgement(NEGATIVE, 0.45))
    assert note == f"The {sentence} so that it does not flap.{remedy}"


def test_a_rate_beyond_a_threshold_beside_an_older_verdict_says_what_that_awaits():
    """Otherwise the page would show a rate above the threshold and a verdict below it."""
    kept = judgement(EVEN, 0.67, is_kept=True)
    says = (
        "The acceptance rate is 67% now; the verdict by the rule of thumb stays until another one"
        " is certain."
    )
    assert judgement_note(kept, judgement(NEGATIVE, 0.45)) == says

    measured = judgement(EVEN, 0.67, is_kept=True, by_speedup=True)
    assert judgement_note(measured, judgement(NEGATIVE, 0.45)) == ""


@pytest.mark.parametrize(
    ("needed", "when"),
    [
        (5400.0, "it will be in about 90 min if it stays as it is"),
        (3.0, "it will be in about 2 min if it stays as it is"),
        (None, "four hours of this traffic would not tell either"),
    ],
)
def test_an_undecided_verdict_says_what_would_decide_it_and_when(needed, when):
    """There is traffic, so a verdict without data would be no answer."""
    undecided = Undecided(rate=0.48, error=0.02, seconds=1800.0, line=0.5, needed=needed)
    note = judgement_note(judgement(NONE, 0.47, judged=window(0.47), undecided=undecided))

    rate = "the acceptance rate of the last 30 min, 48% ± 4%, is not certain to be on one side"
    assert note == f"Undecided: {rate} of 50% yet; {when}."


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        (judgement(NEGATIVE, 0.45), SPECULATE_FEWER),
        (judgement(NEGATIVE, 0.7, by_speedup=True), SPECULATE_FEWER),
        # There are no fewer tokens.
        (judgement(NEGATIVE, 0.45, judged=window(0.45, tokens=1)), f"{HOUR} {OFF}"),
        (judgement(NEGATIVE, 0.2, speculation=SCHEDULED), OFF),
        (judgement(NEGATIVE, 0.2, speculation=ADAPTIVE, by_speedup=True), OFF),
        (judgement(EVEN, 0.55), ""),
        (judgement(POSITIVE, 0.45, by_speedup=True, by_acceptance=NEGATIVE), ""),
    ],
)
def test_a_temperature_that_loses_is_to_draft_less_and_speculation_is_for_the_model_to_end(
    lost, remedy
):
    """Other pods for it alone seldom pay (docs/measurements/routing.md)."""
    assert judgement_note(lost, judgement(NEGATIVE, 0.45, by_speedup=True)) == remedy


def test_a_temperature_that_loses_in_a_model_that_gains_is_told_what_fewer_tokens_cost():
    """They slow down the others (docs/measurements/routing.md)."""
    lost = judgement(NEGATIVE, 0.7, by_speedup=True)
    note = judgement_note(lost, judgement(POSITIVE, 0.8, by_speedup=True))

    assert note.startswith("The model as a whole gains: fewer draft tokens")
    assert SPECULATE_FEWER not in note


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        (judgement(NEGATIVE, 0.45, by_speedup=True), FEWER_OR_OFF),
        (judgement(NEGATIVE, 0.2, speculation=SCHEDULED, by_speedup=True), TURN_OFF),
        (judgement(NEGATIVE, 0.45), SPECULATE_FEWER),
        (judgement(NEGATIVE, 0.2, speculation=SCHEDULED), ""),
    ],
)
def test_a_model_that_loses_as_a_whole_may_do_without_speculation(lost, remedy):
    """Where a schedule is in force, one number of tokens is no remedy.

    What the rule of thumb calls a loss is not to be turned off: the answer says to measure first.
    """
    assert judgement_note(lost) == remedy


def test_findings_take_the_place_of_the_general_remedy_and_a_schedule_is_advised_without_one():
    """A finding that is a fact has no remedy, so the general one stays."""
    lost = {"judgement": judgement(NEGATIVE, 0.3, by_speedup=True)}
    assert model_notes(model(**lost)) == [FEWER_OR_OFF]
    assert model_notes(model(**lost, findings=(STRUCTURED,))) == []
    advice = Advice(schedule=SCHEDULE, can_schedule=True)
    assert model_notes(model(advice=advice)) == [BY_LOAD]
    assert model_notes(model(advice=advice, findings=(STRUCTURED,))) == [BY_LOAD]
    fact = replace(STRUCTURED, is_advice=False)
    assert model_notes(model(**lost, findings=(fact,))) == [FEWER_OR_OFF]
    load = Load(running=9.0, speedup=0.8, error=0.01, fewer="1", speedup_at_fewer=1.5)
    assert model_notes(model(advice=advice, findings=(load,))) == []  # it says so itself


BY_LOAD = (
    'To follow the load, set `"num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 8, 0]]`.'
    " vLLM ignores it with data parallelism, and gives up full CUDA graphs for it on model"
    " runner V1. Keep the load at which it reaches 0 away from the usual one: there vLLM would"
    " draft at one step and not at the next, which halved the throughput in vLLM issue 49548."
)
TWO = "fewer tokens, 2 instead of 5: draft token 3 is accepted only 28% of the time."
OFF = (
    "turn speculation off, or use another draft model: even the first token is accepted only 35% of"
    " the time."
)
MORE = f"more tokens, as long as latency under load allows. {BY_LOAD}"
SET_TWO = (
    "2 draft tokens instead of 7: in steps that prefill nothing, about 4.15 ms per"
    " token instead of 5.2 ms at this load; 5 ms without speculation."
)
LESS_LOAD = (
    "In steps that prefill nothing, about 4.15 ms per token without speculation and 5.2 ms with it"
    " at this load: speculate"
)
AT_LOWER_LOADS = (
    f"{LESS_LOAD} only at lower loads (num_speculative_tokens_per_batch_size), or not at all."
)
FEWER, OR_NONE = Direction.FEWER, Direction.NONE
BY_TIME = {
    "now": 7,
    "best": 0,
    "best_seconds": 0.00415,
    "now_seconds": 0.0052,
    "plain_seconds": 0.00415,
}
GIVEN_UP = "does not use async scheduling"
SCHEDULE = ((1, 4, 3), (5, 8, 0))


@pytest.mark.parametrize(
    ("direction", "tokens", "rest", "sentences"),
    [
        (None, {}, {}, ""),
        (None, {}, {"schedule": SCHEDULE}, BY_LOAD),
        (
            FEWER,
            {"now": 5, "best": 2, "acceptance": 0.3, "next_rate": 0.28},
            {},
            f"30%: speculate {TWO}",
        ),
        (OR_NONE, {"now": 3, "best": 0, "acceptance": 0.18, "next_rate": 0.35}, {}, f"18%: {OFF}"),
        (FEWER, {"now": 0, "acceptance": 0.2}, {}, "20%: speculate fewer tokens."),
        (
            Direction.MORE,
            {"now": 2, "acceptance": 0.81},
            {"schedule": SCHEDULE},
            f"81%: speculate {MORE}",
        ),
        (FEWER, BY_TIME | {"best": 2, "plain_seconds": 0.005}, {}, SET_TWO),
        (FEWER, BY_TIME | {"best": 2, "plain_seconds": None}, {}, f"{SET_TWO.partition(';')[0]}."),
        (OR_NONE, BY_TIME, {"can_schedule": True}, AT_LOWER_LOADS),
        (OR_NONE, BY_TIME, {}, f"{LESS_LOAD} with fewer requests, or not at all."),
    ],
)
def test_advice_says_what_to_set_and_why(direction, tokens, rest, sentences):
    by_acceptance = "Acceptance rate " if "acceptance" in tokens else ""
    advice = TokensAdvice(direction=direction, **tokens) if direction else None
    given = Advice(tokens=advice, **rest)
    text = f"{tokens_sentence(given)} {schedule_sentence(given)}".strip()

    assert text == by_acceptance + sentences


@pytest.mark.parametrize(
    ("speculation", "words"),
    [
        (None, []),
        (Speculation("eagle3", 3), []),
        (Speculation("eagle3", 3, rejection_sample_method="standard"), []),
        (Speculation("eagle3", 3, rejection_sample_method="synthetic"), []),  # a finding says it
        (
            Speculation("eagle3", 3, rejection_sample_method="fly"),
            ["fly also accepts tokens that the model itself"],
        ),
        (ADAPTIVE, ["Verification is adaptive: "]),
        (
            Speculation("ngram", 3),
            ["token by token, and method ngram does not"],
        ),
        (
            Speculation("suffix", 3),
            ["method suffix does not", f"{GIVEN_UP} and model runner V2, which"],
        ),
    ],
)
def test_caveats_say_what_misleads_and_what_the_method_costs(speculation, words):
    sentences = list(caveats(Evidence(speculation=speculation)))
    assert len(sentences) == len(words)
    assert all(part in sentence for part, sentence in zip(words, sentences, strict=True))


def test_a_known_speedup_needs_no_baseline():
    (given_up,) = caveats(Evidence(speculation=Speculation("suffix", 3), speedup=faster(1.2)))
    assert given_up.startswith("With method suffix, vLLM does not use async scheduling")


@pytest.mark.parametrize(
    ("method", "vllm", "runner_v2", "lost"),
    [
        ("ngram", "0.32.0", None, "async scheduling, which"),
        ("ngram", "0.33.0", None, None),
        ("ngram", "0.33.0", False, "async scheduling, which"),
        ("suffix", "0.20.2", False, "async scheduling, which"),
        ("suffix", "0.12.0", False, None),
        ("draft_model", "0.27.1", None, "async scheduling and model runner V2, which"),
        ("draft_model", "0.32.0", None, None),
    ],
)
def test_what_a_method_costs_depends_on_the_version(method, vllm, runner_v2, lost):
    """What plain decoding of that version does not have by default is not given up."""
    evidence = Evidence(speculation=Speculation(method, 3), speedup=faster(1.2))
    sentences = list(caveats(evidence, Configuration(model_runner_v2=runner_v2), vllm))

    assert [lost in sentence for sentence in sentences] == ([] if lost is None else [True])


def test_what_the_engine_says_it_has_is_not_given_up_and_a_schedule_costs_full_cuda_graphs():
    """The resolved configuration is known better than what a method usually costs."""
    runs = Configuration(async_scheduling=True, model_runner_v2=False)
    (lost,) = caveats(
        Evidence(speculation=Speculation("mlp_speculator", 3, per_batch_size=True)), runs
    )
    assert (
        "mlp_speculator and a schedule by batch size, vLLM does not use model runner V2 and full"
        " CUDA graphs" in lost
    )
    assert list(caveats(Evidence(speculation=Speculation("eagle", 3)), runs)) == []


@pytest.mark.parametrize(("vllm", "given_up"), [("0.32.0", 1), ("0.33.0", 0)])
def test_what_the_method_costs_follows_from_the_engines_own_version(vllm, given_up):
    """As its plug-in says it."""
    speculation = Speculation("ngram", 3)
    judged = judgement(Verdict.NET_POSITIVE, 0.8, speculation=speculation)
    one = engine(speculation=speculation, vllm=vllm)

    notes = model_notes(model(engines=(one,), judgement=judged))
    assert len([note for note in notes if "method ngram, vLLM does not use" in note]) == given_up


def losing(index, rate, speedup=None):
    evidence = Evidence(window=window(rate), speedup=speedup and faster(speedup))
    by_time = speedup is not None
    return engine(
        index=index, judgement=judgement(NEGATIVE, rate, evidence=evidence, by_speedup=by_time)
    )


def test_engines_that_lose_although_the_model_does_not_are_named():
    """Where the model loses as a whole, or has one engine, nothing is said twice."""
    engines = (engine(), losing("1", 0.7, 0.9), losing("2", 0.12))
    assert model_notes(model(engines=engines)) == [
        ("Engine 1 loses on its own: decoding is 0.90 times as fast as without speculation."),
        "Engine 2 loses on its own: it accepts 12% of its draft tokens.",
    ]
    lost = judgement(NEGATIVE, 0.3, by_speedup=True)
    assert model_notes(model(engines=engines, judgement=lost)) == [FEWER_OR_OFF]
    assert model_notes(model(engines=(losing("0", 0.12),))) == []


def test_every_code_has_its_sentence():
    """A limitation without one would be a bare code on the page."""
    assert set(LIMITATIONS) == set(Limitation)


def test_without_a_speedup_the_reason_is_given():
    quiet = model(speed=speed(withheld=Withheld.TOO_LITTLE))
    assert hints(quiet) == ["No speedup for demo: not enough requests yet."]
    assert hints(timed_model()) == hints(model(speed=None)) == []


@pytest.mark.parametrize(
    ("role", "notes"), [("kv_producer", 0), (None, 0), ("kv_consumer", 1), ("kv_both", 1)]
)
def test_a_pod_that_receives_kv_caches_says_how_far_placeholder_drafts_bias_its_acceptance(
    role, notes
):
    """40 requests with 3 placeholders each, of 3,000 draft tokens (vLLM counts them as drafted)."""
    pod = engine(configuration=Configuration(kv_connector_role=role))
    said = [note for note in model_notes(model(engines=(pod,))) if "placeholder" in note]

    assert len(said) == notes
    assert all("up to 4% of the draft tokens" in note for note in said)


LOOPING = Loops(rate=0.98, share=0.18, whole=0.71, without=0.62)


WITHOUT_LOOPS = (
    "Without replies that repeat themselves, the acceptance rate is 62% rather than 71%: such loops"
    " are easy to draft (98% accepted), and hold 18% of the draft tokens of finished requests."
)
ALL_LOOP = (
    "18% of the draft tokens of finished requests are of replies that repeat themselves. Such loops"
    " are easy to draft (98% accepted), so the acceptance rate says little about other text."
)


def test_loops_that_hardly_change_the_rate_are_not_told():
    """A third rate, three points off, stood beside those of the row and of the answer."""
    loops = replace(LOOPING, without=0.67)
    judged = judgement(POSITIVE, 0.7, evidence=Evidence(window=window(0.7), loops=loops))
    assert not model_notes(model(judgement=judged))
    assert "loops" not in answer(report(model(judgement=judged))).why


@pytest.mark.parametrize(("without", "said"), [(0.62, WITHOUT_LOOPS), (None, ALL_LOOP)])
def test_the_acceptance_rate_is_said_with_and_without_loops(without, said):
    loops = replace(LOOPING, without=without)
    judged = judgement(POSITIVE, 0.7, evidence=Evidence(window=window(0.7), loops=loops))
    (note,) = model_notes(model(judgement=judged))

    assert said in note
