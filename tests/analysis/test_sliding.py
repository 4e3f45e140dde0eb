"""A sliding window in parts: what leaves it, and its bound."""

from sidecar.analysis.sliding import SlidingParts


def window(*times):
    found = SlidingParts(60.0, 1.0, list)
    for at in times:
        found.current(at).append(at)
    return found


def test_a_part_takes_what_comes_within_its_time():
    found = window(10.0, 10.5, 10.99, 11.0, 30.0)
    assert found.read(30.0) == [[10.0, 10.5, 10.99], [11.0], [30.0]]


def test_parts_leave_with_their_beginning():
    found = window(10.0, 10.9, 40.0)
    assert found.read(70.0) == [[10.0, 10.9], [40.0]]
    assert found.read(70.1) == [[40.0]]
    assert found.read(100.1) == []


def test_the_window_is_bounded_whatever_the_traffic():
    found = window(*(number / 100 for number in range(100_000)))
    assert len(found.read(999.99)) <= 61


def test_a_clock_set_back_forgets_what_is_in_the_future():
    found = window(1000.0, 1001.0)
    found.current(500.0).append(500.0)
    assert found.read(500.0) == [[500.0]]
