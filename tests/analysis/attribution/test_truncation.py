import random

import pytest

from sidecar.analysis.attribution.truncation import truncated_tokens


@pytest.mark.parametrize(("chance", "k"), [(0.3, 3), (0.8, 3), (0.6, 6), (0.95, 2)])
def test_truncated_tokens_are_those_of_requests_cut_at_a_length(chance, k):
    rng = random.Random(1)
    truncated, accepted, steps, count = 0, 0, 0, 20_000
    for _ in range(count):
        left = 60 + rng.randrange(40)
        while left > 0:
            step = 0
            while step < k and rng.random() < chance:
                step += 1
            steps, accepted, left = steps + 1, accepted + step, left - step - 1
        truncated -= left
    assert truncated_tokens(accepted / steps, k, 1.0) == pytest.approx(truncated / count, rel=0.03)


def test_steps_that_seldom_draft_seldom_hold_the_end():
    always = truncated_tokens(2.0, 3.0, 1.0)
    assert 0 < truncated_tokens(2.0, 3.0, 0.1) < 0.3 * always
    assert truncated_tokens(2.0, 3.0, 0.0) == truncated_tokens(0.0, 3.0, 1.0) == 0
