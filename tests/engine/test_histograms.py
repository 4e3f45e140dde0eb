"""Histograms over a sliding window."""

import math

from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading
from sidecar.engine.window import HistogramWindow
from tests.engine.engine_tools import EDGES


def grown(*readings):
    """The growth over a window of (time, counts or None, edges)."""
    kept = HistogramWindow(60.0)
    for at, counts, *edges in readings:
        shown = {} if counts is None else {Phase.TTFT: HistogramReading(edges[0] if edges else EDGES, counts)}
        kept.append(at, shown, has_restarted=False)
    found = kept.growth(Phase.TTFT)
    return None if found is None else found.counts


def test_histogram_growth_needs_two_readings():
    assert grown() is None
    assert grown((0, (1, 2, 3))) is None
    assert grown((0, None), (30, (1, 2, 3))) is None
    assert grown((0, (1, 2, 3)), (30, None)) is None


def test_histogram_growth_is_the_windows_and_bridges_polls_without_it():
    assert grown((0, (1, 2, 3)), (30, None), (40, (2, 3, 4))) == (1, 1, 1)
    assert grown((0, (1, 2, 3)), (30, (2, 4, 6)), (90, (5, 5, 9))) == (3, 1, 3)


def test_changed_buckets_begin_the_window_anew():
    other = (0.5, math.inf)
    assert grown((0, (1, 2, 3)), (10, (7, 9), other)) is None
    assert grown((0, (1, 2, 3)), (10, (7, 9), other), (20, (8, 11), other)) == (1, 2)


def test_buckets_that_change_and_change_back_are_not_subtracted():
    """As where an upgrade is rolled back within the window."""
    other = (0.5, math.inf)
    assert grown((0, (10, 20, 30)), (10, (7, 9), other), (20, (1, 2, 3))) is None
    assert grown((0, (10, 20, 30)), (10, (7, 9), other), (20, (1, 2, 3)), (21, (1, 3, 4))) == (0, 1, 1)


def test_a_histogram_that_the_first_page_after_a_restart_lacks_begins_anew():
    kept = HistogramWindow(60.0)
    reading = [{Phase.TTFT: HistogramReading(EDGES, counts)} for counts in ((100, 150, 200), (1, 2, 3), (2, 4, 6))]
    kept.append(0, reading[0], has_restarted=False)
    kept.append(1, {}, has_restarted=True)
    kept.append(2, reading[1], has_restarted=False)
    assert kept.growth(Phase.TTFT) is None
    kept.append(3, reading[2], has_restarted=False)
    assert kept.growth(Phase.TTFT).counts == (1, 2, 3)
