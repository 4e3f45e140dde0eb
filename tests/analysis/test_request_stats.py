import pytest

from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.analysis.quantile import quantile
from sidecar.analysis.request_stats import RequestStats
from sidecar.analysis.request_window import SlidingRequests
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


def test_the_window_forgets_what_is_old():
    window = SlidingRequests(60)
    window.add(request(acceptance=0.2, accepted_tokens=6), 0)
    window.add(request(acceptance=0.8, accepted_tokens=24), 50)
    assert window.read(50).acceptance == pytest.approx(0.5)
    late = window.read(100)
    assert (late.requests, late.acceptance, late.p50) == (1, pytest.approx(0.8), 0.8)
    assert late.position_rates == pytest.approx((0.8, 0.5, 0.2))
    empty = window.read(200)
    assert (empty.requests, empty.acceptance, empty.p50, empty.position_rates) == (0, None, None, ())


def test_the_window_tells_how_requests_are_distributed():
    window = SlidingRequests(60)
    for rate in (0.0, 0.05, 0.5, 0.99, 1.0):
        window.add(request(acceptance=rate), 0)
    assert window.read(0).distribution == (2, 0, 0, 0, 0, 1, 0, 0, 0, 2)


def test_the_sums_are_of_all_requests_and_the_quantiles_of_the_latest():
    window = SlidingRequests(60, most=10)
    for number in range(25):
        window.add(request(draft_tokens=1.0, accepted_tokens=0.0, acceptance=number / 25), number)
    read = window.read(25)
    assert (read.requests, read.draft_tokens, sum(read.distribution)) == (25, 25, 10)
    assert read.p10 >= 15 / 25


def test_requests_that_only_count_in_sums_leave_the_window_too():
    window = SlidingRequests(60, most=10)
    for number in range(1000):
        window.add(request(), number)
    read = window.read(1000)
    assert (read.requests, read.draft_tokens, read.accepted_tokens) == (60, 1800, 900)
    assert read.acceptance == 0.5
    empty = window.read(2000)
    assert (empty.requests, empty.drafts, empty.acceptance, empty.p50, sum(empty.distribution)) == (0, 0, None, None, 0)


def test_many_uncertain_requests_make_a_rate_and_few_do_not():
    window = SlidingRequests(60)
    for number in range(100):
        window.add(request(attribution=Attribution.INFERRED, error=4.0), number / 10)
        told = window.read(10).acceptance is not None
        # The standard error is 4 * sqrt(n) / (30 * n): 0.015 at 79.01 requests.
        assert told == (number + 1 > 79)


def test_quantiles_lie_on_the_line_between_neighbours():
    assert quantile([], 0.5) is None
    assert quantile([0.4], 0.9) == 0.4
    assert quantile([0.0, 1.0], 0.1) == pytest.approx(0.1)
    assert quantile([0.0, 0.2, 0.4, 0.6, 0.8], 0.9) == pytest.approx(0.72)
