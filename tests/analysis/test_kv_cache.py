"""KV-cache usage: peak, distribution."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from sidecar.analysis.engine.engine_state import KvCacheUsage


@given(st.lists(st.tuples(st.floats(0.01, 40), st.floats(0, 1)), min_size=1, max_size=60))
def test_peak_is_the_highest_of_the_window(polls):
    usage = KvCacheUsage(60.0)
    at, seen = 0.0, []
    for pause, value in polls:
        at += pause
        usage.observe(at, value)
        seen.append((at, value))
        assert usage.peak(at) == max(value for when, value in seen if when > at - 60.0)
    assert usage.peak(at + 61.0) is None
    assert usage.distribution.snapshot().count == len(polls)


def test_a_peak_that_nobody_asks_for_is_bounded():
    usage = KvCacheUsage(60.0)
    for poll in range(5000):
        usage.observe(float(poll), 1 - poll / 5000)
    assert len(pickle.dumps(usage)) < 6000
