"""Quantiles over a sliding window: near the exact ones, at any rate, in bounded memory."""

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.analysis.distributions import (
    ACCEPTANCE_BIN,
    DURATION_BIN,
    Ordered,
    Recent,
    acceptance_bin,
    duration_bin,
    quantile,
)

WINDOW = 300.0
SHARES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)


def filled(values, bin_of=acceptance_bin, at=0.0):
    recent = Recent(WINDOW, bin_of)
    for value in values:
        recent.add(at, value)
    return recent.ordered(at)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300))
def test_an_acceptance_quantile_is_within_one_bin_of_the_exact_one(values):
    for share in SHARES:
        assert abs(quantile(filled(values), share) - quantile(sorted(values), share)) <= ACCEPTANCE_BIN + 1e-12


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=300))
def test_a_duration_quantile_is_within_one_bin_of_the_exact_one(values):
    for share in SHARES:
        ratio = quantile(filled(values, duration_bin), share) / quantile(sorted(values), share)
        assert 1 / DURATION_BIN - 1e-9 <= ratio <= DURATION_BIN + 1e-9


@given(st.dictionaries(st.integers(0, 199), st.integers(1, 50), min_size=1))
def test_one_value_in_each_bin_gives_exact_quantiles(counts):
    values = [bin_ / 200 + 0.001 for bin_, count in counts.items() for _ in range(count)]
    seen = filled(values)
    assert list(seen) == sorted(values)
    assert (len(seen), seen[-1:], seen[0]) == (len(values), [max(values)], min(values))
    with pytest.raises(IndexError):
        seen[len(values)]


def test_edges_and_values_beyond_them_have_a_bin():
    assert [acceptance_bin(one) for one in (0, 0.0049, 0.3, 1)] == [0, 0, 60, 200]
    assert duration_bin(0) == duration_bin(1e-9) < duration_bin(1e-3) < duration_bin(1e7) == duration_bin(1e6)
    assert all(duration_bin(one) <= duration_bin(other) for one, other in pairwise(n / 7 for n in range(1, 1000)))
    assert (len(Ordered(())), quantile(Ordered(()), 0.5)) == (0, None)


@given(st.lists(st.tuples(st.floats(0, 40), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=100))
def test_a_value_leaves_with_the_window_and_at_most_a_slice_late(gaps):
    recent, at, added = Recent(WINDOW, acceptance_bin), 0.0, []
    for gap, value in gaps:
        at += gap
        recent.add(at, value)
        added.append((at, value))
        due = [value for since, value in added if since >= at - WINDOW]
        late = [value for since, value in added if at - WINDOW * (1 + 1 / 60) <= since < at - WINDOW]
        assert len(due) <= len(recent.ordered(at)) <= len(due) + len(late)
    assert len(recent.ordered(at + WINDOW * (1 + 1 / 60) + 1e-6)) == 0


def test_what_was_seen_before_a_clock_was_set_back_is_of_no_window():
    recent = Recent(WINDOW, acceptance_bin)
    recent.add(1000.0, 0.1)
    assert list(recent.ordered(999.0)) == []
    recent.add(1000.0, 0.1)
    recent.add(700.0, 0.9)
    assert list(recent.ordered(1000.0)) == [0.9]


def test_memory_does_not_grow_with_the_rate():
    def size(rate):
        recent = Recent(WINDOW, duration_bin)
        for place in range(400 * rate):
            recent.add(place / rate, 0.01 + place % 997 / 997)
        parts = [recent._counts, recent._values, *(one.counts for one in recent._slices)]
        return len(recent._slices), sum(map(sys.getsizeof, parts))

    (slices, few), (most_slices, many) = size(200), size(1000)
    assert slices <= most_slices <= 61
    assert many <= few * 1.5
