"""One model's requests since the start, and the slow tenth of them on busy and on small pods."""

import pytest

from sidecar.analysis.attribution.result import AttributedRequest, Attribution, AttributionOutcome
from sidecar.analysis.request_stats import AcceptanceTail, RequestStats
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.requests.record import Outcome


def request(**changes):
    values = {
        "id": "a",
        "model": "m",
        "temperature": "0",
        "attribution": Attribution.EXACT,
        "outcome": Outcome.COMPLETED,
        "end": 0.0,
        "drafts": 10.0,
        "draft_tokens": 30.0,
        "accepted_tokens": 15.0,
        "acceptance": 0.5,
        "acceptance_length": 2.5,
        "histogram": (2, 3, 3, 2),
        "ttft": 0.2,
        "tpot": 0.03,
        "duration": 4.0,
    }
    return AttributedRequest(**(values | changes))


def test_every_label_set_is_there_before_the_first_request():
    stats = RequestStats(TemperatureBuckets().labels, 60)
    assert len(stats.totals) == 8 * 2
    assert len(stats.requests) == 8 * 3 * 3
    assert set(stats.requests.values()) == {0}
    assert {work.draft_tokens for work in stats.totals.values()} == {0}
    assert set(stats.recent(0)) == set(stats.latencies) == set(TemperatureBuckets().labels)


def test_requests_add_up_by_temperature_and_attribution():
    stats = RequestStats(("0", "1+"), 60)
    stats.add(request(), 0)
    stats.add(request(drafts=5, draft_tokens=15, accepted_tokens=0, acceptance=0.0), 0)
    stats.add(request(attribution=Attribution.INFERRED, histogram=()), 0)
    exact, inferred = stats.totals["0", Attribution.EXACT], stats.totals["0", Attribution.INFERRED]
    assert (exact.drafts, exact.draft_tokens, exact.accepted_tokens) == (15, 45, 15)
    assert (inferred.drafts, inferred.accepted_per_position) == (10, [])
    assert exact.acceptance.cumulative()[-1] == 2
    assert stats.totals["1+", Attribution.EXACT].drafts == 0
    assert stats.requests["0", Attribution.EXACT, Outcome.COMPLETED] == 2


def test_the_window_of_attribution_outcomes_forgets():
    stats = RequestStats(("0",), 60)
    stats.add(request(attribution=Attribution.NONE, without_usage=True), 100.0)
    stats.add(request(), 130.0)
    assert stats.attribution_outcomes(160.0) == dict.fromkeys(AttributionOutcome, 0) | {
        AttributionOutcome.WITHOUT_USAGE: 1,
        AttributionOutcome.EXACT: 1,
    }
    assert stats.attribution_outcomes(161.0)[AttributionOutcome.WITHOUT_USAGE] == 0
    assert sum(stats.attribution_outcomes(191.0).values()) == 0


def test_accepted_tokens_by_position_come_from_the_histogram():
    stats = RequestStats(("0",), 60)
    stats.add(request(), 0)  # 10 steps: 8 accepted the first token, 5 the second, 2 the third
    stats.add(request(histogram=(0, 1)), 0)
    assert stats.totals["0", Attribution.EXACT].accepted_per_position == [9, 5, 2]


def test_a_request_without_numbers_counts_as_a_request_and_in_latencies_alone():
    stats = RequestStats(("0",), 60)
    stats.add(request(attribution=Attribution.NONE, drafts=0, draft_tokens=0, accepted_tokens=0, acceptance=None), 0)
    assert stats.requests["0", Attribution.NONE, Outcome.COMPLETED] == 1
    assert stats.recent(0)["0"].requests == 0
    assert stats.latencies["0"].duration.cumulative()[-1] == 1


def test_a_request_too_short_to_tell_counts_in_sums_and_is_no_observation():
    stats = RequestStats(("0",), 60)
    stats.add(request(acceptance=None, acceptance_length=None), 0)
    work = stats.totals["0", Attribution.EXACT]
    assert (work.draft_tokens, work.acceptance.cumulative()[-1], work.length.cumulative()[-1]) == (30, 0, 0)


def test_aborted_requests_tell_nothing_of_latency():
    stats = RequestStats(("0",), 60)
    stats.add(request(outcome=Outcome.ABORTED), 0)
    latencies = stats.latencies["0"]
    assert [d.cumulative()[-1] for d in (latencies.ttft, latencies.tpot, latencies.duration)] == [0, 0, 0]


def tail_of(rates, start=0.0, every=1.0):
    tail = AcceptanceTail(60)
    for index, rate in enumerate(rates):
        tail.add(rate, start + index * every)
    return tail


def test_the_tail_is_the_windows_tenth_percentile():
    tail = tail_of([0.9] * 100 + [0.1 * index for index in range(11)] * 5)
    assert tail.p10(154, 20) == pytest.approx(0.1)


def test_with_few_requests_the_window_of_the_tail_stretches_to_as_many_as_it_takes_within_an_hour():
    tail = tail_of([0.0] * 10 + [0.5] * 20, every=120)
    last = 29 * 120
    assert tail.p10(last, 20) == 0.5
    assert tail.p10(last, 30) == 0.0
    assert tail.p10(last, 31) is None
    assert tail.p10(last + 3600, 2) is None
    assert tail.p10(last + 3600, 1) == 0.5


def test_without_a_request_there_is_no_tail():
    assert AcceptanceTail(60).p10(0, 0) is None


def test_the_tail_keeps_a_bounded_number():
    tail = tail_of([0.1] * 2000 + [0.9] * 1000, every=0.001)
    assert tail.p10(3, 20) == 0.9
