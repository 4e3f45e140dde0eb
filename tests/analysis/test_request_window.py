"""Requests of the sliding window."""

import pytest

from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.analysis.request_window import SlidingRequests
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


def test_times_are_those_of_completed_requests_in_the_window():
    window = SlidingRequests(60)
    window.add(request(ttft=0.1, tpot=None), 0)
    window.add(request(ttft=0.3, tpot=0.02, attribution=Attribution.INFERRED), 50)
    window.add(request(ttft=9.0, tpot=9.0, outcome=Outcome.ABORTED), 50)
    read = window.read(50)
    assert (read.ttft_p50, read.tpot_p50, read.tpot_p99) == (pytest.approx(0.2), 0.02, 0.02)
    assert read.attribution == "exact, inferred"
    late = window.read(100)
    assert (late.ttft_p50, late.ttft_p99) == (0.3, 0.3)
    assert window.read(200).attribution is None


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
        has_rate = window.read(10).acceptance is not None
        # The standard error is 4 * sqrt(n) / (30 * n): 0.015 at 79.01 requests.
        assert has_rate == (number + 1 > 79)
