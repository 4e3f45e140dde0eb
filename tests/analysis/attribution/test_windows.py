import pytest

from sidecar.analysis.attribution.windows import shared_steps
from tests.analysis.attribution.windows import GROWTH, windows


def steps(found, start, end):
    return found.at(end).clock(end) - found.at(start).clock(start)


def test_the_clock_runs_evenly_through_a_busy_window_and_stands_still_while_idle():
    assert steps(windows(), 2.25, 4.5) == pytest.approx(22.5)
    idle = windows(busy=((0.5, 1.0),), count=1)
    assert steps(idle, 0.0, 0.5) == 0
    assert steps(idle, 0.5, 0.75) == pytest.approx(5)


def test_moments_outside_the_windows_are_not_covered():
    found = windows()
    assert found.at(-0.1) is found.at(10.1) is None
    assert (found.at(0).start, found.at(10).end) == (0.0, 10.0)


def test_old_windows_are_forgotten_and_the_clock_goes_on():
    found = windows(count=1000, history=100)
    assert len(found) < 200
    assert steps(found, 950, 960) == pytest.approx(100)


def test_without_a_step_count_requests_in_flight_share_what_was_emitted():
    assert shared_steps(GROWTH, in_flight=5.0, busy=1.0) == pytest.approx(10)
    assert shared_steps(GROWTH, in_flight=0.5, busy=0.5) == pytest.approx(50)  # one at a time, half of the window
    assert shared_steps(GROWTH, in_flight=0.0, busy=0.0) == 0
