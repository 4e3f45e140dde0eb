"""What a change of how vLLM speculates did is told from the requests before and after it."""

import random
from dataclasses import replace

import pytest

from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.change import sample_of
from sidecar.analysis.windows.recent import Ordered
from sidecar.wording.change import change_rows, change_sentence
from tests.analysis.analysis_tools import EAGLE, PluginEnd, Pod

MORE = replace(EAGLE, num_speculative_tokens=5)
DAY = 86_400


def finish(pod, requests, *, start, seconds=3.0, **changes):
    """Requests that finish one after the other, ``seconds`` apart."""
    for _ in range(requests):
        pod.plugin.finish(**changes)
        pod.poll(pod.plugin.counted(), start=start, seconds=seconds)


def idle(pod, polls, *, start):
    """Half a minute each, in which nothing comes any more."""
    for _ in range(polls):
        pod.poll(pod.plugin.counted(), start=start, seconds=30)


def restart(pod, connection, speculation):
    pod.plugin.close()
    pod.plugin = PluginEnd(pod, connection, speculation=speculation)
    pod.plugin.serve(drafts=0).tick()
    pod.poll(pod.plugin.counted(), start=float(connection))


def changed():
    """A pod that accepted 12 of 30 draft tokens, and accepts 24 since it drafts 5 at a time."""
    pod = Pod()
    finish(pod, 40, start=1.0, accepted_tokens=12)
    restart(pod, 2, MORE)
    return pod


def test_a_change_is_told_once_enough_requests_have_finished_since():
    pod = changed()
    finish(pod, 4, start=2.0, accepted_tokens=24)
    change = pod.model().change
    assert (change.now, change.before.speculation) == (None, EAGLE)
    assert "too few requests have finished" in change_sentence(pod.model())
    assert change_rows(pod.model()) == []

    finish(pod, 40, start=2.0, accepted_tokens=24)
    change = pod.model().change
    before, now = change.before.temperatures["0"], change.now.temperatures["0"]
    assert (before.acceptance, now.acceptance) == (pytest.approx(0.4), pytest.approx(0.8))
    assert before.tpot.seconds == now.tpot.seconds == pytest.approx(2 / 30)
    rows = {name: values for name, *values in change_rows(pod.model())}
    assert rows["T 0, acceptance rate"] == ["40% ± 0", "80% ± 0"]
    assert rows["T 0, TPOT P50"][0].startswith("66.7 ms (")
    sentence = change_sentence(pod.model())
    assert sentence.startswith("Before: eagle, 3 tokens (as of ")
    assert " UTC: eagle, 5 tokens (as of " in sentence


def test_what_was_before_is_the_last_traffic_however_long_the_restart_took():
    """Whoever changes it often stops the traffic first, and a load takes its time."""
    pod = Pod()
    finish(pod, 40, start=1.0, accepted_tokens=12)
    idle(pod, 100, start=1.0)
    restart(pod, 2, MORE)
    finish(pod, 40, start=2.0, accepted_tokens=24)
    change = pod.model().change
    assert change.before.temperatures["0"].acceptance == pytest.approx(0.4)
    assert change.before.temperatures["0"].requests == 40
    assert change.since - change.before.at > 2800


def test_requests_without_drafts_have_times_but_no_acceptance_and_the_counts_say_so():
    """As with n-gram, which drafts only where something repeats itself."""
    pod = Pod()
    finish(pod, 10, start=1.0, drafts=0, draft_tokens=0, accepted_tokens=0)
    finish(pod, 40, start=1.0)
    finish(pod, 10, start=1.0, temperature=100)
    idle(pod, 3, start=1.0)
    restart(pod, 2, MORE)
    finish(pod, 40, start=2.0)
    idle(pod, 3, start=2.0)
    rows = {name: values for name, *values in change_rows(pod.model())}
    assert rows["T 0, requests"] == ["50 (acceptance: 40)", "40"]
    left_out = "Left out, since only one side has drafts there: T 0.7-1."
    assert left_out in change_sentence(pod.model())


def test_two_changes_without_requests_between_them_are_one():
    pod = changed()
    restart(pod, 3, replace(EAGLE, num_speculative_tokens=1))
    finish(pod, 40, start=3.0, accepted_tokens=24)
    change = pod.model().change
    assert change.before.speculation.num_speculative_tokens == 3
    assert change.now.speculation.num_speculative_tokens == 1


@pytest.mark.parametrize("undo", ["the same again", "a day"])
def test_a_change_is_no_longer_told(undo):
    """Once it is taken back, or after a day."""
    pod = changed()
    finish(pod, 10, start=2.0, accepted_tokens=24)
    assert pod.model().change is not None

    if undo == "a day":
        finish(pod, 1, start=2.0, seconds=DAY, accepted_tokens=24)
        finish(pod, 10, start=2.0, accepted_tokens=24)
    else:
        restart(pod, 3, EAGLE)
        finish(pod, 40, start=3.0, accepted_tokens=12)
        assert pod.model().change.before.speculation == MORE
        restart(pod, 4, MORE)
        restart(pod, 5, EAGLE)
        finish(pod, 40, start=5.0, accepted_tokens=12)
    assert pod.model().change is None


def test_a_restart_without_a_change_is_none():
    pod = Pod()
    finish(pod, 40, start=1.0)
    restart(pod, 2, EAGLE)
    finish(pod, 40, start=2.0)
    assert pod.model().change is None
    assert change_sentence(pod.model()) == ""


def test_the_interval_of_a_median_holds_it_in_95_percent_of_independent_requests():
    """Of a skewed distribution; with ten requests as with a thousand, or somewhat more often."""
    chance = random.Random(5)
    for requests in (10, 40, 1000):
        held = 0
        for _ in range(400):
            times = sorted(chance.expovariate(1.0) for _ in range(requests))
            median = sample_of(Sums(), Ordered([(time, 1) for time in times]), Ordered([])).ttft
            held += median.low <= 0.6931 <= median.high
        assert 0.92 <= held / 400 <= 0.995, requests


def test_few_requests_have_no_error_and_so_no_value():
    side = sample_of(Sums.of([10] * 9, [5] * 9), Ordered([(1.0, 9)]), Ordered([(0.1, 9)]))
    assert (side.requests, side.timed) == (9, 9)
    assert (side.acceptance, side.ttft, side.tpot) == (None, None, None)
