"""The plug-in's total against vLLM's, poll by poll."""

import pytest

from sidecar.analysis.coverage import Coverage


def ratio(polls):
    """After polls, one a second, of (vLLM's counter, the plug-in's total)."""
    coverage, before, tick = Coverage(), polls[0][1], 0
    for at, (counted, reported) in enumerate(polls):
        tick = reported - before or tick
        coverage.compare(float(at), counted, reported, max(tick, 0))
        before = reported
    return coverage.ratio


@pytest.mark.parametrize(
    ("polls", "expected"),
    [
        ([(500, 1000)], None),  # they need not be of one moment
        ([(1000, 1000), (1000, 1000)], 1),
        ([(30 * n + ahead, 30 * n) for n, ahead in enumerate((0, 0, 27, 0, 15, -15, -30, 0))], 1),
        ([(20 * n, 10 * n) for n in range(100)], 0.5),
        ([(10 * n, 20 * n) for n in range(200)], 2),
        ([(101 * n, 100 * n) for n in range(1000)], 0.99),
        ([(1000, 500)] * 20, None),  # a sidecar that started beside an idle engine
        ([(1000, 500)] * 40, 0.5),
        ([(10 * n, min(10 * n, 200)) for n in range(40)], 1),  # for twenty seconds vLLM alone has counted
        ([(10 * n, min(10 * n, 200)) for n in range(60)], 0.35),
        ([(10 * n, 10 * n if n == 59 else min(10 * n, 200)) for n in range(60)], 1),
        ([(10 * n, 10 * n) for n in range(9)] + [(90, 20)], None),  # another plug-in's
    ],
)
def test_coverage_is_1_but_for_what_is_in_flight(polls, expected):
    assert ratio(polls) == (expected and pytest.approx(expected, rel=0.03))
