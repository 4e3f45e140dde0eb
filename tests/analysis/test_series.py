"""The limits that keep a pod within its number of series."""

from pathlib import Path

import pytest

from sidecar.analysis.series import engines_with_histograms, shown_positions
from sidecar.settings import Settings


def test_more_engines_leave_fewer_positions_and_never_more():
    """With one engine they are as many as the setting allows."""
    shown = [shown_positions(Settings(), engines) for engines in range(1, 20)]

    assert shown[0] == Settings().limits.positions
    assert shown == sorted(shown, reverse=True)
    assert shown[-1] >= 0


@pytest.mark.parametrize(
    "costly",
    [
        {"plugin": {"adapters": True}},
        {"baseline": {"m": {"ttft": {"p50": 0.1}}}},
        {"temperature_buckets": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)},
    ],
)
def test_what_costs_series_takes_them_from_the_positions(costly):
    """The budget is the same whatever is switched on."""
    assert shown_positions(Settings(**costly), 4) < shown_positions(Settings(), 4)


def test_a_setting_may_bound_the_positions_further():
    """It is a limit beside the budget's."""
    assert shown_positions(Settings(limits={"positions": 4}), 1) == 4


def test_the_reference_says_how_many_positions_eight_engines_have():
    """It is calculated, so that a metric that is added does not make it wrong."""
    reference = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()

    assert f"series: {shown_positions(Settings(), 8)} with 8 engines" in reference


def test_few_engines_have_histograms_each():
    """Many alike show one engine's, and very many none."""
    assert [engines_with_histograms(engines) for engines in (1, 4, 8, 40)] == [1, 4, 1, 0]
