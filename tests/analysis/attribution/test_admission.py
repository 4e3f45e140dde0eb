import math

import pytest

from sidecar.analysis.attribution.admission import Admission


def seen(*requests, most=1000):
    """``requests``: name, start and, if it has ended, end."""
    admission = Admission(most)
    for name, start, *_ in requests:
        admission.started(name, start)
    for name, start, *end in requests:
        if end:
            admission.finished(name, start, end[0])
    return admission


def test_without_a_limit_requests_are_admitted_at_once():
    assert seen(("a", 1.0), ("b", 2.0)).admitted(2.0, None) == (2.0, 0.0)


def test_those_who_wait_are_admitted_in_order_as_others_end():
    admission = seen(("a", 0.0, 12.0), ("b", 1.0, 10.0), ("c", 2.0, 20.0), ("d", 3.0, 21.0))
    assert [admission.admitted(start, 2)[0] for start in (0.0, 1.0, 2.0, 3.0)] == [0.0, 1.0, 10.0, 12.0]


def test_the_limit_may_be_learned_after_the_requests_have_ended():
    admission = seen(("a", 0.0, 10.0), ("b", 1.0, 11.0), ("c", 2.0, 12.0))
    assert admission.admitted(1.0, 3) == (1.0, 0.0)
    assert [admission.admitted(start, 1)[0] for start in (0.0, 1.0, 2.0)] == [0.0, 10.0, 11.0]


def test_a_place_that_was_free_before_the_arrival_is_taken_at_the_arrival():
    assert seen(("a", 0.0, 1.0), ("b", 5.0, 7.0)).admitted(5.0, 1) == (5.0, 0.0)


def test_the_order_of_simultaneous_arrivals_is_uncertain_if_one_of_them_waits():
    first, second = ("a", 0.0, 10.0), ("b", 0.01)
    waiting = seen(first, second, ("c", 0.02), ("d", 9.0))
    assert waiting.admitted(0.01, 2)[1] == pytest.approx(9.9, abs=0.2)
    assert seen(first, second).admitted(0.01, 1)[1] > 9
    assert waiting.admitted(9.0, 3)[1] == 0


def test_a_request_that_was_not_seen_to_start_counts_from_its_start():
    admission = Admission(10)
    admission.finished("x", 3.0, 4.0)
    assert admission.admitted(3.5, 1) == (4.0, 0.0)


def test_the_oldest_is_forgotten_if_there_are_too_many():
    admission = Admission(2)
    assert [admission.started(name, at) for name, at in (("a", 0.0), ("b", 1.0), ("c", 2.0))] == [False, False, True]
    assert admission.oldest_start == 1.0


def test_memory_is_bounded_and_ranks_stay_right():
    admission = Admission(100)
    for number in range(20_000):
        admission.started(str(number), float(number))
        admission.finished(str(number), float(number), number + 1.5)
    assert len(admission._starts) < 10_000
    assert admission.admitted(19_999.0, 1)[0] == pytest.approx(20_000.5 - 1)


def test_occupancy_counts_requests_and_finds_the_parts_with_any():
    admission = seen(("a", 0.0, 0.2), ("b", 0.1, 0.3), ("c", 0.7))
    mean, busy = admission.occupancy(0.0, 1.0)
    assert mean == pytest.approx(0.7)
    assert busy == ((0.0, 0.3), (0.7, 1.0))
    assert admission.occupancy(2.0, 3.0) == (1.0, ((2.0, 3.0),))
    assert Admission(10).occupancy(0.0, 1.0) == (0.0, ())


def test_a_request_whose_times_make_no_sense_leaves_no_trace():
    admission = seen(("a", 0.0))
    admission.forget("a")
    assert admission.oldest_start is None
    assert admission.occupancy(0.0, 1.0) == (0.0, ())
    assert not math.isnan(admission.admitted(1.0, 1)[0])
