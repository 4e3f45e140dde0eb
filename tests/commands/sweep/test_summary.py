from dataclasses import replace

import pytest

from sidecar.analysis.verdict import Verdict
from sidecar.commands.estimates import Interval
from sidecar.commands.sweep.level import Measured
from sidecar.commands.sweep.sample import Sample, acceptance
from sidecar.commands.sweep.summary import level_result, speculation, temperature_result
from sidecar.commands.sweep.workload import Level, Load, Workload
from sidecar.settings.groups import Thresholds

THRESHOLDS = Thresholds()


def sample(tpot=0.01, drafts=None, accepted=0, **values):
    given = {"temperature": 0.0, "ttft": 0.1, "duration": 1.0, "tokens": 10, "draft_tokens": 3 * (drafts or 0)}
    return Sample(tpot=tpot, drafts=drafts, accepted_tokens=accepted, **given | values)


def measured(at_once, samples=(), **values):
    level = Level(Workload(((0.0, 1.0),)), Load(at_once=at_once))
    given = {"failed": 0, "seconds": 2.0, "counted": None, "others": False, "complete": True}
    return Measured(level=level, samples=tuple(samples), **given | values)


@pytest.mark.parametrize(
    ("speedups", "said"),
    [
        ([1.9, 1.4, 1.1], "faster at every load up to 16 at once"),
        ([1.9, 1.4, 0.9], "faster up to 4 at once, no longer at 16 at once"),
        ([1.9, 0.8, 1.1], "faster up to 1 at once, no longer at 4 at once"),
        ([0.9, 0.8, 0.7], "not faster, even at 1 at once"),
        ([1.0, 1.2, 1.2], "not faster, even at 1 at once"),
    ],
)
def test_the_load_at_which_speculation_stops_paying(speedups, said):
    levels = [
        replace(level_result(measured(at_once), None, THRESHOLDS), speedup=Interval(one, one - 0.01, one + 0.01))
        for at_once, one in zip((1, 4, 16), speedups, strict=True)
    ]
    assert f"measured: {said}" in temperature_result(levels, [measured(1)], THRESHOLDS).notes


def test_a_level_is_judged_by_its_speedup_where_a_baseline_was_measured():
    """Acceptance alone would call it a gain; the plain server is faster."""
    ours = measured(1, [sample(0.02 + number % 7 / 1000, drafts=10, accepted=27) for number in range(80)])
    plain = measured(1, [sample(0.01 + number % 7 / 1000) for number in range(80)])
    assert level_result(ours, None, THRESHOLDS).verdict == "net_positive"
    found = level_result(ours, plain, THRESHOLDS)
    assert found.verdict == "net_negative"
    assert found.speedup.value == pytest.approx(13 / 23)
    assert found.speedup.error < 0.1
    assert found.speed.tokens_per_second == 400


def test_acceptance_is_of_tokens_and_its_quantiles_of_requests():
    found = speculation([measured(1, [sample(drafts=10, accepted=30), sample(drafts=30, accepted=0)])])
    assert (found.acceptance, found.length) == (30 / 120, 1 + 30 / 40)
    assert (found.p10, found.p50, found.p90) == pytest.approx((0.1, 0.5, 0.9))


def test_position_rates_are_shares_of_all_steps():
    found = acceptance([sample(drafts=2, histogram=(1, 0, 1)), sample(drafts=2, histogram=(0, 2))])
    assert found.position_rates == (3 / 4, 1 / 4)
    assert acceptance([sample()]) is None


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("net_positive", "net_positive"), "net_positive"),
        (("net_negative", "net_negative"), "net_negative"),
        (("net_positive", "net_negative"), "break_even"),
        (("net_positive", "insufficient_data"), "net_positive"),
        (("insufficient_data", "insufficient_data"), "insufficient_data"),
    ],
)
def test_measured_speedups_decide_over_a_low_acceptance(verdicts, expected):
    """By its acceptance it would lose."""
    low = measured(1, [sample(drafts=10, accepted=3) for _ in range(40)])
    level = level_result(low, None, THRESHOLDS)
    assert temperature_result([level], [low], THRESHOLDS).verdict == "net_negative"
    levels = [replace(level, speedup=Interval(1.5, 1.4, 1.6), verdict=Verdict(verdict)) for verdict in verdicts]
    found = temperature_result(levels, [low], THRESHOLDS)
    assert found.verdict == expected
    advised = [note for note in found.notes if not note.startswith("measured: ")]
    assert (not advised) == (expected == "net_positive")
