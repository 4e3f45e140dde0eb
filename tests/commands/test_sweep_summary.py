"""What is judged from requests of known speed and acceptance."""

from dataclasses import replace

import pytest

from sidecar.settings.groups import Thresholds
from specdec_tools.commands.sweep import summarize, text
from specdec_tools.measuring.client import Sample
from specdec_tools.measuring.sweep_result import LevelResult, SweepLevel
from tests.commands.sweep_tools import level_of, printed, summarized, sweep_of


def sample(tpot=0.01, drafts=None, accepted=0, **values):
    given = {"temperature": 0.0, "ttft": 0.1, "tokens": 10, "draft_tokens": 3 * (drafts or 0)}
    return Sample(tpot=tpot, drafts=drafts, accepted_tokens=accepted, **given | values)


def summary(level, **thresholds):
    (only,) = summarized(sweep_of(level), **thresholds)
    return only


@pytest.mark.parametrize(
    ("accepted", "verdict"),
    [(27, "net_positive"), (17, "break_even"), (12, "net_negative"), (3, "net_negative")],
)
def test_the_acceptance_decides_and_what_to_change_is_left_to_the_sidecar(accepted, verdict):
    """A sweep does not know how vLLM drafts: advised fewer tokens, hot requests lost a remedy."""
    level = level_of([sample(drafts=10, accepted=accepted)] * 80)
    judged = summary(level)
    assert judged.verdict == verdict
    lines = printed(sweep_of(level))
    assert lines[6].split()[-2:] == ["replies", verdict]
    assert lines[8].endswith("(net_positive from 0.65, net_negative below 0.5).")
    assert "`specdec-sidecar report` says it." in lines[9]
    assert len(lines) == 11
    assert lines[-1].startswith("To find out whether it pays: ")


def test_an_acceptance_near_a_threshold_is_undecided_and_asks_for_more_requests():
    """Requests differ, so 80 of them may be on either side by chance."""
    level = level_of([sample(drafts=10, accepted=14)] * 80)

    assert summary(level).verdict == "insufficient_data"
    near = "an acceptance of 0.47 ± 0.04 is not certain to be on one side of 0.5"
    assert summary(level).caveats == (f"no verdict: {near} (raise --requests)",)


def test_where_time_was_measured_too_there_is_no_verdict_by_acceptance():
    """Neither in the table nor as a rule, nor for want of requests."""
    for accepted, count in ((3, 80), (27, 4)):
        level = level_of([sample(drafts=10, accepted=accepted)] * count)
        judged = summarize(level, Thresholds(), is_timed=True)
        said = "\n".join(text(sweep_of(level), [judged], Thresholds(), is_compared=True))

        assert (judged.verdict, judged.caveats) == (None, ())
        assert "verdict" not in said.lower()
        assert "acceptance" in said


def test_the_verdict_follows_the_thresholds():
    """Without a verdict, the caveat says what to raise."""
    few = level_of([sample(drafts=10, accepted=27)] * 4)
    judged = summary(few)
    assert judged.verdict == "insufficient_data"
    assert judged.caveats == ("no verdict from fewer than 20 requests (raise --requests)",)
    assert summary(few, min_requests=4).verdict == "net_positive"


def test_a_caveat_names_its_levels():
    enough, few = (
        level_of([sample(drafts=10)] * count, SweepLevel(0.7, count)) for count in (40, 3)
    )
    lines = printed(sweep_of(enough, few))
    assert (
        "no verdict from fewer than 20 requests (raise --requests): temperature 0.7, concurrency 3"
        in lines
    )


def test_acceptance_is_of_tokens_its_quantiles_of_requests_and_position_rates_of_steps():
    steps = [
        sample(drafts=10, accepted=30, histogram=(5, 0, 5)),
        sample(drafts=30, accepted=0, histogram=(20, 10)),
    ]
    judged = summary(level_of(steps))
    values = judged.metrics
    assert (values["acceptance"], values["length"], values["tokens/s"]) == (
        30 / 120,
        1 + 30 / 40,
        10.0,
    )
    quantiles = [values[f"acceptance P{share}"] for share in (10, 50, 90)]
    assert quantiles == pytest.approx([0.1, 0.5, 0.9])
    assert judged.position_rates == (15 / 40, 5 / 40)


def test_throughput_is_unknown_where_a_reply_does_not_tell_its_tokens():
    """The number of requests is known all the same."""
    judged = summary(level_of([sample(), sample(tpot=None, tokens=None)]))
    assert (judged.metrics["requests/s"], judged.metrics["tokens/s"]) == (1.0, None)


def test_a_vllm_without_speculation_has_times_and_no_verdict():
    level = level_of([sample()])
    judged = summary(level)
    assert (judged.acceptance_from, judged.metrics["acceptance"]) == ("none", None)
    assert judged.metrics["TPOT P50"] == 0.01
    assert judged.verdict == "insufficient_data"
    lines = printed(sweep_of(level))
    assert lines[5] == "neither the replies nor vLLM's counters show any drafts: every level"
    assert len(lines) == 7


def test_where_no_request_was_answered_the_levels_are_named():
    """They were measured: the sweep was not stopped."""
    answered = level_of([sample()])
    (round_,) = answered.rounds
    failing = replace(round_, samples=(), failed=3)
    unanswered = LevelResult(level=SweepLevel(1.0, 4), rounds=(failing,))
    result = replace(sweep_of(answered, unanswered), complete=False)
    lines = printed(result)

    assert "no request was answered: temperature 1, concurrency 4" in lines
    assert not any("incomplete" in line for line in lines)


def test_a_sweep_that_was_stopped_says_so():
    lines = printed(replace(sweep_of(level_of([sample()])), complete=False))

    assert any(line.startswith("The sweep is incomplete: it was stopped, or") for line in lines)
