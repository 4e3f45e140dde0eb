"""Growth over a sliding window, of totals and of histograms."""

import math

import pytest

from sidecar.analysis.windows.counters import HistogramWindow
from sidecar.analysis.windows.growth import GrowthWindow, subtract
from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading
from tests.engine.engine_tools import EDGES

OTHER_EDGES = (0.5, math.inf)


def window(*readings, seconds=60.0):
    growth_window = GrowthWindow(seconds, subtract)
    for at, *totals in readings:
        growth_window.append(at, tuple(totals))
    return growth_window


@pytest.mark.parametrize(
    ("readings", "growth", "seconds"),
    [
        ([(float(at), 1000.0 + 5 * at) for at in range(200)], (300.0,), 60),
        ([], None, 0),
        ([(0, 7)], (0,), 0),
        ([(0, 7), (10, 9)], (2,), 10),
        ([(0, 7), (10, 9, 3)], (2, 3), 10),  # a position that appears later
        ([(0, 0), (60.5, 7), (121, 14)], (7,), 60.5),  # polls may be a window apart
        ([(0, 0), (10, 10), (3610, 9000)], (0,), 0),  # an outage
        ([(0, 0), (10, 10), (3610, 9000), (3620, 9008)], (8,), 10),
        # The zero at which totals began is no outage.
        ([(-math.inf, 0), (1000, 7)], (7,), math.inf),
    ],
)
def test_growth_is_that_of_the_window_or_of_the_history_if_it_is_shorter(readings, growth, seconds):
    """Over regular polls, few of them, and outages."""
    assert (window(*readings).growth, window(*readings).seconds) == (growth, seconds)


def test_memory_does_not_grow_with_the_polls():
    """A window keeps about sixty readings, however often vLLM is polled."""
    growth_window = window(*((at / 10, 1.0) for at in range(100_000)))

    assert len(growth_window.readings()) <= 62
    assert growth_window.seconds == pytest.approx(60, abs=1.1)


def test_readings_are_about_sixty_and_the_latest():
    """Their first and last span the growth."""
    growth_window = window(*((float(at), float(at * at)) for at in range(100)))
    readings = growth_window.readings()

    assert readings[-1][1][0] - readings[0][1][0] == growth_window.growth[0]
    assert readings[-1][0] == 99
    assert window((0, 1)).readings() == [(0, (1,))]


@pytest.mark.parametrize(("since", "spanned"), [(10, 4810), (600, 5400), (601, 601)])
def test_a_window_that_spans_an_outage_is_at_most_half_as_long_again(since, spanned):
    """Polls every minute for an hour, none for 80 minutes, then again every second."""
    before = [(60.0 * minute, minute) for minute in range(61)]
    after = [(3600.0 + 4800 + second, 1000 + second) for second in range(since + 1)]

    assert window(*before, *after, seconds=3600).seconds == spanned


@pytest.mark.parametrize(
    ("readings", "growth"),
    [
        ([], None),
        ([(0, (1, 2, 3))], None),
        ([(0, None), (30, (1, 2, 3))], None),
        ([(0, (1, 2, 3)), (30, None)], None),
        ([(0, (1, 2, 3)), (30, None), (40, (2, 3, 4))], (1, 1, 1)),  # a page without it
        ([(0, (1, 2, 3)), (30, (2, 4, 6)), (90, (5, 5, 9))], (3, 1, 3)),
        ([(0, (1, 2, 3)), (10, (7, 9))], None),  # other buckets
        ([(0, (1, 2, 3)), (10, (7, 9)), (20, (8, 11))], (1, 2)),
        # Buckets that change and change back, as where an upgrade is rolled back within the window:
        ([(0, (10, 20, 30)), (10, (7, 9)), (20, (1, 2, 3))], None),
        ([(0, (10, 20, 30)), (10, (7, 9)), (20, (1, 2, 3)), (21, (1, 3, 4))], (0, 1, 1)),
    ],
)
def test_a_histograms_growth_needs_two_readings_with_the_same_buckets(readings, growth):
    """Other buckets come from another version of vLLM, whose counts start again."""
    histograms = HistogramWindow(60.0)
    for at, counts in readings:
        edges = OTHER_EDGES if counts is not None and len(counts) == 2 else EDGES
        page = {} if counts is None else {Phase.TTFT: HistogramReading(edges, counts)}
        histograms.append(at, page, has_restarted=False)
    grown = histograms.growth.get(Phase.TTFT)

    assert (None if grown is None else grown.counts) == growth


def test_a_histogram_that_the_first_page_after_a_restart_lacks_starts_again():
    """vLLM exports some histograms only after the first request."""
    histograms = HistogramWindow(60.0)
    for at, counts in enumerate(((100, 150, 200), None, (1, 2, 3), (2, 4, 6))):
        page = {} if counts is None else {Phase.TTFT: HistogramReading(EDGES, counts)}
        histograms.append(at, page, has_restarted=counts is None)

        assert counts is None or at == 3 or Phase.TTFT not in histograms.growth

    assert histograms.growth[Phase.TTFT].counts == (1, 2, 3)
