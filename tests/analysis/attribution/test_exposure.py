import random

import pytest

from sidecar.analysis.attribution.exposure import Amount, Exposures
from tests.analysis.attribution.windows import windows


def nothing(window, amounts):
    pass


def test_what_requests_account_for_is_all_there_however_it_is_spread():
    rng = random.Random(2)
    exposures = Exposures(windows(count=50, steps=[rng.uniform(0, 20) for _ in range(50)]), 1, memory=1e12)
    for _ in range(300):
        start = rng.uniform(0, 45)
        exposures.spread({Amount.TOKENS: 7.0}, start, start + rng.choice((0.1, 1.0, 4.9)))
    exposures.close(50.0, nothing)
    assert exposures.sums[Amount.TOKENS] == pytest.approx(300 * 7)


def test_closed_windows_stay_as_they_are():
    exposures = Exposures(windows(), 1, memory=1e12)
    exposures.close(5.0, nothing)
    exposures.spread({Amount.TOKENS: 10.0}, 2.0, 7.0)
    seen = []
    exposures.close(10.0, lambda window, amounts: seen.append(amounts[Amount.TOKENS]))
    assert seen == pytest.approx([2, 2, 0, 0, 0])


def test_sums_fade_together_with_what_vllm_counted():
    exposures = Exposures(windows(count=100), 1, memory=10)
    for second in range(100):
        exposures.spread({Amount.TOKENS: 11.0}, float(second), second + 1.0)
    exposures.close(100.0, nothing)
    assert exposures.sums[Amount.TOKENS] / exposures.counted.generated == pytest.approx(0.1)
    assert exposures.counted.generated == pytest.approx(110 / (1 - 2.718281828 ** (-1 / 10)), rel=1e-3)
