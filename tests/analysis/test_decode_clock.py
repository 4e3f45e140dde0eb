"""Plain step times over any stretch of time."""

import pickle

import pytest

from sidecar.analysis.speed.plain import DecodeClock
from tests.analysis.decoding import period, plain


def test_mean_step_times_over_parts_of_polls():
    clock = DecodeClock(900.0)
    clock.add(0.0, 1.0, [(period(4, 0.01, engine_steps=100), plain(0.008, 0.001))])
    clock.add(1.0, 2.0, [(period(4, 0.02, engine_steps=50), plain(0.012, 0.003))])
    found = clock.between(0.5, 1.5)  # 50 steps of the first second, 25 of the second
    assert found.seconds == pytest.approx((50 * 0.008 + 25 * 0.012) / 75)
    assert found.error == pytest.approx((50 * 0.001 + 25 * 0.003) / 75)


def test_a_step_counts_once_however_many_requests_are_in_it():
    clock = DecodeClock(900.0)
    clock.add(0.0, 1.0, [(period(1, 0.01, engine_steps=100), plain(0.01))])
    clock.add(1.0, 2.0, [(period(64, 0.02, engine_steps=50), plain(0.02))])
    assert clock.between(0.0, 2.0).seconds == pytest.approx(2 / 150)


def test_of_several_engines_each_counts_as_the_requests_in_it():
    clock = DecodeClock(900.0)
    busy, idle = period(3, 0.01, engine_steps=100), period(1, 0.02, engine_steps=50)
    clock.add(0.0, 1.0, [(busy, plain(0.01)), (idle, plain(0.02))])
    assert clock.between(0.0, 1.0).seconds == pytest.approx((300 * 0.01 + 50 * 0.02) / 350)


def test_nothing_is_known_beyond_the_polls_or_with_too_little_plain_time():
    clock = DecodeClock(900.0)
    assert clock.between(0.0, 1.0) is None
    clock.add(0.0, 1.0, [(period(1, 0.01), plain(0.01))])
    clock.add(1.0, 2.0, [(period(99, 0.01), None)])
    clock.add(2.0, 3.0, [])
    assert clock.between(-0.1, 1.0) is None
    assert clock.between(0.0, 1.0) is not None
    assert clock.between(0.0, 2.0) is None
    assert clock.between(2.0, 3.0) is None  # nothing was decoded
    assert clock.between(0.5, 0.5) is None


def test_a_request_that_is_settled_after_the_last_poll_ends_with_it():
    clock = DecodeClock(900.0)
    clock.add(0.0, 1.0, [(period(1, 0.01), plain(0.01))])
    assert clock.between(0.5, 7.0).seconds == pytest.approx(0.01)


def test_a_gap_or_a_clock_set_back_begins_anew():
    clock = DecodeClock(900.0)
    clock.add(100.0, 101.0, [(period(1, 0.01), plain(0.01))])
    clock.add(50.0, 51.0, [(period(1, 0.02), plain(0.02))])
    assert clock.between(50.0, 51.0).seconds == pytest.approx(0.02)
    assert clock.between(49.0, 51.0) is None


def test_history_is_bounded():
    clock = DecodeClock(10.0)
    for at in range(10_000):
        clock.add(float(at), at + 1.0, [(period(1, 0.01), plain(0.01))])
        assert len(pickle.dumps(clock)) < 100 * (10 + 65)
    assert clock.between(9_991.0, 10_000.0).seconds == pytest.approx(0.01)
