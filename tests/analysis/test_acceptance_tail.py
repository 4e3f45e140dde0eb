"""The slow tenth of the requests, on busy and on small pods."""

import pytest

from sidecar.analysis.acceptance_tail import AcceptanceTail


def filled(rates, start=0.0, every=1.0):
    tail = AcceptanceTail(60)
    for index, rate in enumerate(rates):
        tail.add(rate, start + index * every)
    return tail


def test_it_is_the_windows_tenth_percentile():
    tail = filled([0.9] * 100 + [0.1 * index for index in range(11)] * 5)
    assert tail.p10(154, 20) == pytest.approx(0.1)


def test_with_few_requests_the_window_stretches_to_as_many_as_it_takes_within_an_hour():
    tail = filled([0.0] * 10 + [0.5] * 20, every=120)
    last = 29 * 120
    assert tail.p10(last, 20) == 0.5
    assert tail.p10(last, 30) == 0.0
    assert tail.p10(last, 31) is None
    assert tail.p10(last + 3600, 2) is None
    assert tail.p10(last + 3600, 1) == 0.5


def test_without_a_request_there_is_none():
    assert AcceptanceTail(60).p10(0, 0) is None


def test_it_keeps_a_bounded_number():
    tail = filled([0.1] * 2000 + [0.9] * 1000, every=0.001)
    assert tail.p10(3, 20) == 0.9
