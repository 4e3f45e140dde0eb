"""Words for a speedup: how certain it is, why there is none, and what a baseline is worth."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sidecar.analysis.advice import Advice, Direction, TokensAdvice
from sidecar.analysis.judgement import Verdict
from sidecar.analysis.speed.speedup import Held
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason
from sidecar.cli import parser
from sidecar.export.status import status
from sidecar.export.status_page import content
from sidecar.settings.baselines import PlainStepTimes
from sidecar.wording.answer import answer
from sidecar.wording.speed import (
    baseline_sentence,
    context_rows,
    plus_minus,
    why_withheld,
)
from specdec_tools.commands.sidecar_status import status_lines
from specdec_tools.plain.law import Miss
from specdec_tools.plain.law_text import law_lines, miss_lines
from tests.analysis.analysis_tools import faster
from tests.export.reports import (
    NEVER_CONNECTED,
    judgement,
    model,
    report,
    shown,
    speed,
    speedup,
    timed,
    timed_model,
)

MEASURED = PlainStepTimes(
    running=(1.0, 16.0),
    seconds=(0.01, 0.02),
    context=100.0,
    contexts=(80.0, 2200.0),
    context_seconds=(0.0, 0.0),
    prefill_seconds=2e-5,
    drift=0.02,
    measured=datetime(2026, 11, 26, tzinfo=UTC),
)


def withheld(why, **changes):
    found = speed(withheld=why)
    decodes = found.steps.decode_steps
    steps = found.steps._replace(context_tokens=9000.0 * decodes, context_steps=decodes)
    return model(speed=replace(found, steps=steps), plain_steps=MEASURED, **changes)


@pytest.mark.parametrize("why", Withheld)
def test_every_reason_has_its_sentence(why):
    assert why_withheld(withheld(why))


@pytest.mark.parametrize(
    ("times", "words", "lengths"),
    [
        (
            MEASURED,
            "hold 9,000 tokens on average, and the baseline was measured with 80 to 2,200",
            "80,9000",
        ),
        (
            replace(MEASURED, context_seconds=(), contexts=None),
            "was measured only with 100",
            "100,9000",
        ),
        (
            replace(MEASURED, contexts=(80.0, 9000.0), prefill_seconds=None),
            "does not say what prefill costs",
            "80,9000",
        ),
    ],
)
def test_beyond_the_baseline_s_contexts_it_says_what_to_measure(times, words, lengths):
    """One clause, and one command that covers the baseline's loads and this traffic."""
    text = why_withheld(replace(withheld(Withheld.CONTEXT), plain_steps=times))
    loads = ",".join(f"{running:.0f}" for running in times.running)
    command = (
        f"specdec-sidecar baseline --url URL --plugin-socket PATH --load {loads}"
        f" --context {lengths} --out baseline.yaml"
    )
    assert words in text
    assert text.endswith(f"measure it again on a vLLM that does not speculate: `{command}`")
    _, *given = command.replace("URL", "http://plain:8000").split()
    assert parser(given).parse_args(given).load == tuple(map(round, times.running))


def test_where_a_baseline_does_not_help_the_answer_says_so_first():
    """Whoever measured one expects a speedup."""
    text = answer(report(withheld(Withheld.CONTEXT))).text
    assert text.startswith("Speedup not known: requests hold 9,000 tokens on average")
    assert text.endswith("`. Not measured; by the rule of thumb, speculation pays on average.")
    without = answer(report(model())).text  # without any baseline
    assert without == "Not measured; by the rule of thumb, speculation pays on average."


def test_without_a_plugin_one_sentence_says_what_it_would_add():
    """It is the plug-in's state; with a baseline, the answer says first that it does not help."""
    untimed = replace(speed(withheld=Withheld.NO_STEPS), steps=None)
    no_split = NoSplit(NoSplitReason.NOT_CONNECTED)
    begins = ((None, "Not measured; by"), (MEASURED, "Speedup not known: only the plug-in"))
    for times, begin in begins:
        tree = report(
            model(speed=untimed, no_split=no_split, plain_steps=times), plugin=NEVER_CONNECTED
        )
        assert answer(tree).text.startswith(begin)
        document = status(shown(tree))
        [notes] = [one["notes"] for one in document["models"]]
        lacks = "there is no split by temperature and no measured speedup"
        assert [lacks in note for note in notes].count(True) == 1
        assert not any("No speedup for" in note for note in notes)
        printed = " ".join(status_lines(document, "URL"))
        assert printed.count(lacks) == content(shown(tree)).count(lacks) == 1


def test_a_held_speedup_is_shown_with_its_age():
    held = replace(speed(withheld=Withheld.CONTEXT), held=Held(faster(1.5, 0.01), 1200.0))
    judged = judgement(Verdict.NET_POSITIVE, 0.5, by_speedup=True)
    found = answer(report(timed_model(speed=held, judgement=judged)))
    assert found.text.startswith("Speculation pays: it saves 6.7 ms per token on average")
    assert found.why.startswith("The speedup is that of 20 min ago, the last one that was known.")


def test_a_speedup_that_may_be_on_either_side_is_probable_and_not_certain():
    """It does not break even: that would be a claim, too."""
    unsure = judgement(Verdict.INSUFFICIENT_DATA, 0.5, by_speedup=True)
    known = replace(speed(), speedup=faster(1.47, 0.205))
    found = answer(report(timed_model(speed=known, judgement=unsure)))
    assert "probably saves 6.4 ms per token, not yet certain (1.47 ± 0.41)" in found.text
    assert "breaks even" not in found.text
    bucket = timed("1+", Verdict.INSUFFICIENT_DATA, 0.3, 40, 45)
    text = answer(report(timed_model(bucket, judgement=unsure))).text
    assert text == (
        "Undecided: per token, speculation probably costs 5 ms, not yet certain (0.89 ± 0.02) at"
        " T 1+."
    )


def test_temperatures_without_a_clear_difference_are_told_in_one_clause():
    """Their rows have the ratios."""
    known = replace(speed(), speedup=faster(1.0, 0.05))
    rows = [
        replace(timed(name, Verdict.INSUFFICIENT_DATA, 0.5, 30, 30), speedup=faster(1.01, 0.05))
        for name in ("0", "1+")
    ]
    unsure = judgement(Verdict.INSUFFICIENT_DATA, 0.5, by_speedup=True)
    found = answer(report(timed_model(*rows, speed=known, judgement=unsure)))
    assert (
        found.text
        == "Undecided: per token, speculation makes no clear difference so far at T 0, 1+."
    )
    assert found.reason.endswith("More traffic decides.")
    fewer = TokensAdvice(
        direction=Direction.FEWER, now=3, best=1, best_seconds=0.0627, now_seconds=0.071
    )
    advised = timed_model(*rows, speed=known, judgement=unsure, advice=Advice(tokens=fewer))
    assert answer(report(advised)).reason.endswith(
        "1 draft token is faster than 3 in steps that prefill nothing."
    )
    none = replace(fewer, direction=Direction.NONE, best=0)
    without = timed_model(*rows, speed=known, judgement=unsure, advice=Advice(tokens=none))
    assert answer(report(without)).reason.endswith("More traffic decides.")
    rough = replace(MEASURED, drift=0.04)
    tree = timed_model(*rows, speed=known, judgement=unsure, plain_steps=rough)
    assert answer(report(tree)).reason.endswith(
        "More traffic alone may not decide: the baseline's step times at this load are only known"
        " to ± 8.0 %. Measure it again, on a machine that does nothing else."
    )


def test_beside_a_gain_that_is_certain_a_probable_loss_is_not_in_the_headline():
    """A green headline that says what it costs is read twice. The row of T 1+ has the numbers."""
    cold = timed("0", Verdict.NET_POSITIVE, 0.7, 30, 20)
    hot = timed("1+", Verdict.INSUFFICIENT_DATA, 0.3, 40, 45)
    found = answer(report(timed_model(cold, hot)))
    assert found.tone == "good"
    assert found.text.startswith(
        "Speculation pays in part: per token, it saves 10 ms at T 0; is undecided at T 1+."
    )
    assert found.reason.startswith("Measured with prefill, against decoding without speculation")
    assert "1.50 ± 0.02 at T 0, 0.89 ± 0.02 at T 1+" in found.listed


@pytest.mark.parametrize(
    ("ratio", "error", "says"),
    [
        (0.99, 0.08, "makes no clear difference so far (0.99 ± 0.16)"),
        (1.08, 0.05, "makes no clear difference so far (1.08 ± 0.10)"),
        (0.95, 0.02, "probably costs 1.1 ms per token, not yet certain (0.95 ± 0.04)"),
    ],
)
def test_a_speedup_within_its_error_is_on_neither_side(ratio, error, says):
    """Nothing is probable there, and the milliseconds would be noise."""
    unsure = judgement(Verdict.INSUFFICIENT_DATA, 0.5, by_speedup=True)
    known = replace(speed(), speedup=faster(ratio, error))
    whole = answer(report(timed_model(speed=known, judgement=unsure))).text

    assert whole.startswith(f"Speculation {says} on average")


def test_a_baseline_is_described_by_its_age_and_what_it_was_measured_with():
    """What an older file does not have is left out."""
    assert baseline_sentence(MEASURED, MEASURED.measured.timestamp() + 7200) == (
        "Baseline measured 2.0 h ago, with 1 to 16 requests running, contexts of 80 to 2,200"
        " tokens. Step times are known to ± 4.0 % at the worst load and context."
    )
    bare = PlainStepTimes(running=(1.0,), seconds=(0.01,), context=100.0)
    assert baseline_sentence(bare, 0.0) == (
        "Baseline measured with 1 request running, contexts of 100 tokens."
    )


def test_a_baseline_prints_its_law_with_errors():
    """What does not depend on the load is in one sentence."""
    law = replace(MEASURED, context_seconds=(1e-6, 1.6e-5), hidden_tokens=300.0)
    assert list(law_lines(law)) == [
        "running  step at 100 tokens, ms  at 1,000 more, ms",
        "1.0                    10 ± 0.4          11 ± 0.44",
        "16.0                   20 ± 0.8           36 ± 1.4",
        "a new prompt of 1,000 tokens adds 14 ± 0.56 ms; 300 tokens of a step take no time",
    ]
    one_context = replace(MEASURED, context_seconds=(), prefill_seconds=None)
    assert list(law_lines(one_context))[-1] == "16.0                   20 ± 0.8"


def test_the_steps_that_a_law_misses_most_are_named():
    off = [Miss(wanted=8, context=2000.0, is_mixed=mixed, off=0.04) for mixed in (True, False)]
    assert list(miss_lines(off)) == [
        "off by +4.0 %: steps with prompts, 8 requests at once, 2,000 tokens of context",
        "off by +4.0 %: steps without prompts, 8 requests at once, 2,000 tokens of context",
    ]


def test_the_speedup_by_context_is_a_table():
    rows = context_rows(model(contexts={"64-256": speedup(45, 30), "4k-16k": speedup(45, 60)}))
    assert [row[:2] for row in rows] == [
        ("64-256", plus_minus(speedup(45, 30))),
        ("4k-16k", plus_minus(speedup(45, 60))),
    ]
