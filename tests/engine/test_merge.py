"""Several engines as one."""

import math

import pytest

from sidecar.engine.merge import OTHER_ENGINES, merge
from sidecar.engine.names import Counter, Gauge, Phase, Trait
from sidecar.engine.snapshot import EngineSnapshot
from tests.engine.engine_tools import engine

DRAFTS = Counter.DRAFTS
TOKENS = Counter.GENERATION_TOKENS


def test_merge_sums_all_but_ratios():
    """The usage of several KV caches is that of the fullest."""
    first = engine(
        {DRAFTS: 1},
        (1, 2),
        (1, 2, 3),
        gauges={Gauge.KV_CACHE_USAGE: 0.2, Gauge.REQUESTS_RUNNING: 1},
    )
    second = engine(
        {DRAFTS: 10, TOKENS: 5},
        (10,),
        (1, 1, 1),
        gauges={Gauge.KV_CACHE_USAGE: 0.7, Gauge.REQUESTS_RUNNING: 2},
    )
    both = merge([first, second])

    assert both.key == OTHER_ENGINES
    assert both.counters == {DRAFTS: 11, TOKENS: 5}
    assert both.accepted_per_position == (11, 2)
    assert both.gauges == {Gauge.KV_CACHE_USAGE: 0.7, Gauge.REQUESTS_RUNNING: 3}
    assert both.histograms[Phase.TTFT].counts == (2, 3, 4)


@pytest.mark.parametrize(
    ("capacities", "expected"), [((10, 20), 30), ((10, None), None), ((None, None), None)]
)
def test_merged_capacity_is_known_if_all_are(capacities, expected):
    """A sum of some would be too low."""
    assert (
        merge([engine(capacity=capacity) for capacity in capacities]).kv_cache_capacity_tokens
        == expected
    )


def test_merge_keeps_every_trait_and_adds_nothing():
    """Histograms with different buckets cannot be added."""
    both = merge(
        [
            engine(ttft=(1, 2, 3), traits=[Trait.OVERCOUNTED]),
            engine(ttft=(1, 2), edges=(0.5, math.inf)),
        ]
    )

    # not of other buckets
    assert both == EngineSnapshot(
        OTHER_ENGINES, {}, (), {}, {}, None, frozenset({Trait.OVERCOUNTED})
    )


def test_merged_positions_are_absent_if_an_engine_with_drafts_has_none():
    """The sum would be too low; an engine without drafts has none to add."""
    complete, silent = engine({DRAFTS: 10}, (8, 4)), engine({DRAFTS: 10})

    assert merge([complete, silent]).accepted_per_position == ()
    assert merge([complete, engine({DRAFTS: 0})]).accepted_per_position == (8, 4)
