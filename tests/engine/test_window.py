"""Growth over a sliding window."""

import math

import pytest

from sidecar.engine.window import GrowthWindow, subtract


def window(*readings, seconds=60.0):
    found = GrowthWindow(seconds, subtract)
    for at, *totals in readings:
        found.append(at, tuple(totals))
    return found


def test_growth_is_that_of_the_window_not_of_all_that_was_counted():
    found = window(*((float(at), 1000.0 + 5 * at) for at in range(200)))
    assert found.growth == (300.0,)
    assert found.seconds == 60.0


def test_before_the_window_is_full_it_covers_what_is_known():
    assert window().growth is None
    assert (window((0, 7)).growth, window((0, 7)).seconds) == ((0,), 0)
    assert (window((0, 7), (10, 9)).growth, window((0, 7), (10, 9)).seconds) == ((2,), 10)


def test_a_position_that_appears_later_has_grown_from_0():
    assert window((0, 7), (10, 9, 3)).growth == (2, 3)


def test_memory_does_not_grow_with_the_polls():
    found = window(*((at / 10, 1.0) for at in range(100_000)))
    assert len(found.readings()) <= 62
    assert found.seconds == pytest.approx(60, abs=1.1)


def test_readings_are_about_sixty_and_the_latest():
    found = window(*((float(at), float(at * at)) for at in range(100)))
    readings = found.readings()
    assert readings[-1][1][0] - readings[0][1][0] == found.growth[0]
    assert readings[-1][0] == 99
    assert window((0, 1)).readings() == [(0, (1,))]


def test_after_an_outage_the_window_begins_anew():
    found = window((0, 0), (10, 10), (3610, 9000))
    assert (found.growth, found.seconds) == ((0,), 0)
    found.append(3620, (9008,))
    assert (found.growth, found.seconds) == ((8,), 10)


@pytest.mark.parametrize(("since", "spanned"), [(10, 4810), (600, 5400), (601, 601)])
def test_a_window_that_spans_an_outage_never_gets_longer_than_half_as_long_again(since, spanned):
    """Polls every minute for an hour, none for 80 minutes, then again every second."""
    before = [(60.0 * minute, minute) for minute in range(61)]
    after = [(3600.0 + 4800 + second, 1000 + second) for second in range(since + 1)]
    assert window(*before, *after, seconds=3600).seconds == spanned


def test_polls_may_be_a_window_apart():
    assert window((0, 0), (60.5, 7), (121, 14)).growth == (7,)


def test_the_zero_that_totals_began_at_is_no_outage():
    assert window((-math.inf, 0), (1000, 7)).growth == (7,)
