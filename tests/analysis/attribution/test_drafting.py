import math
import random

import pytest

from sidecar.analysis.attribution.drafting import Drafting
from sidecar.analysis.attribution.exposure import Amount, accepted_tokens, optional_steps
from sidecar.analysis.attribution.windows import Growth
from tests.analysis.attribution.windows import window

SHARES = (0.1, 0.4)
K = 3


def observed(rows, *, noise=0.0, seed=1):
    """``rows``: optional steps of both buckets; 12 tokens are accepted in each window."""
    rng = random.Random(seed)
    drafting = Drafting(2, memory=1e6)
    for number, row in enumerate(rows):
        amounts = [0.0] * (Amount.BUCKETS + 4)
        drafts = 12 / K + rng.gauss(0, noise)
        for bucket, steps in enumerate(row):
            amounts[optional_steps(bucket)] = steps
            amounts[accepted_tokens(bucket)] = 6.0
            drafts += SHARES[bucket] * steps
        amounts[Amount.EMITTED] = sum(row)
        growth = Growth(drafts=drafts, draft_tokens=K * drafts, accepted=12.0, generated=12.0 + sum(row), steps=10.0)
        drafting.observe(window(float(number), number + 1.0, growth=growth), amounts, K)
    drafting.solve()
    return drafting


def test_buckets_that_vary_apart_are_told_apart():
    rng = random.Random(2)
    drafting = observed([(rng.uniform(0, 40), rng.uniform(0, 40)) for _ in range(200)], noise=1.0)
    assert drafting.share(0) == pytest.approx(0.1, abs=0.02)
    assert drafting.share(1) == pytest.approx(0.4, abs=0.02)


def test_buckets_in_constant_proportion_keep_the_error_of_the_prior():
    drafting = observed([(20.0, 20.0)] * 200, noise=1.0)
    assert drafting.share(0) == pytest.approx(0.25, abs=0.01)
    sums = [0.0] * (Amount.BUCKETS + 4)
    for bucket in (0, 1):
        sums[optional_steps(bucket)], sums[accepted_tokens(bucket)] = 4000.0, 1200.0
    assert drafting.acceptance_error(0, sums, K) > 0.03


def test_too_few_windows_determine_nothing():
    drafting = observed([(20.0, 10.0)] * 5)
    assert drafting.acceptance_error(0, [1.0] * (Amount.BUCKETS + 4), K) == math.inf


def test_standard_errors_hold():
    """Of many fits, the errors are as large as claimed."""
    rng = random.Random(3)
    ratios = []
    for seed in range(40):
        rows = [(rng.uniform(10, 40), rng.uniform(10, 40)) for _ in range(60)]
        drafting = observed(rows, noise=3.0, seed=seed)
        ratios += [(drafting.share(bucket) - SHARES[bucket]) / drafting._solution.errors[bucket] for bucket in (0, 1)]
    assert math.sqrt(sum(ratio**2 for ratio in ratios) / len(ratios)) == pytest.approx(1, abs=0.35)
