"""Values and sums of a sliding window: their bins and slices take bounded memory."""

import pickle
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.analysis.distributions import quantile
from sidecar.analysis.windows.recent import (
    ACCEPTANCE_BIN,
    RELATIVE_BIN,
    Recent,
    acceptance_bin,
    relative_bin,
)
from sidecar.analysis.windows.sums import SlidingSums

WINDOW = 300.0
SHARES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)


def ordered(values, bin_of=acceptance_bin):
    """The values of one moment, in a window."""
    recent = Recent(WINDOW, bin_of)
    recent.add(0.0, values)
    return recent.ordered()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300))
def test_an_acceptance_quantile_is_within_one_bin_of_the_exact_one(values):
    """Whatever the values: half a point at most."""
    for share in SHARES:
        assert (
            abs(quantile(ordered(values), share) - quantile(sorted(values), share))
            <= ACCEPTANCE_BIN + 1e-12
        )


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=300))
def test_a_duration_quantile_is_within_one_bin_of_the_exact_one(values):
    """Whatever the values: 2 % at most."""
    for share in SHARES:
        ratio = quantile(ordered(values, relative_bin), share) / quantile(sorted(values), share)
        assert 1 / RELATIVE_BIN - 1e-9 <= ratio <= RELATIVE_BIN + 1e-9


@given(st.dictionaries(st.integers(0, 199), st.integers(1, 50), min_size=1))
def test_one_value_in_each_bin_gives_exact_quantiles(counts):
    """A bin is shown by the latest value in it."""
    values = [bin_ / 200 + 0.001 for bin_, count in counts.items() for _ in range(count)]
    window = ordered(values)
    assert list(window) == sorted(values)
    assert (len(window), window[len(values) - 1], window[0]) == (
        len(values),
        max(values),
        min(values),
    )
    with pytest.raises(IndexError):
        window[len(values)]


def test_edges_and_values_beyond_them_have_a_bin():
    """So no observation is lost, and bins rise with their values."""
    assert [acceptance_bin(rate) for rate in (0, 0.0049, 0.3, 1)] == [0, 0, 60, 200]
    assert (
        relative_bin(0)
        == relative_bin(1e-9)
        < relative_bin(1e-3)
        < relative_bin(1e7)
        == relative_bin(1e6)
    )
    assert all(
        relative_bin(low) <= relative_bin(high)
        for low, high in pairwise(n / 7 for n in range(1, 1000))
    )


@given(st.lists(st.tuples(st.floats(0, 40), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=100))
def test_a_value_leaves_with_the_window_and_at_most_a_slice_late(gaps):
    """Whatever the pauses between the values."""
    recent, at, added = Recent(WINDOW, acceptance_bin), 0.0, []
    for gap, value in gaps:
        at += gap
        recent.add(at, [value])
        added.append(at)
        due = sum(since >= at - WINDOW for since in added)
        late = sum(at - WINDOW * (1 + 1 / 60) <= since < at - WINDOW for since in added)
        recent.drop(at)

        assert due <= len(recent.ordered()) <= due + late
    recent.drop(at + WINDOW * (1 + 1 / 60) + 1e-6)

    assert len(recent.ordered()) == 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rate():
    """Five times as many values a second take about the same memory."""

    def size(rate):
        recent = Recent(WINDOW, relative_bin)
        for place in range(400 * rate):
            recent.add(place / rate, [0.01 + place % 997 / 997])
        return len(pickle.dumps(recent))

    assert size(1000) <= 1.5 * size(200)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.1, 0.9, 3.0, 30.0]), st.sampled_from("abc"), st.integers(1, 9)
        )
    )
)
def test_sums_are_of_the_slices_that_the_window_reaches(gaps):
    """Whatever the pauses: a slice lasts a twentieth of the window from its first value on."""
    sliding, at, slices = SlidingSums(20.0, 20), 0.0, []
    for gap, key, value in gaps:
        at += gap
        if not slices or at - slices[-1][0][0] >= 1.0:
            slices.append([])
        slices[-1].append((at, key, value))
        sliding.add(at, {key: value})
        slices = [part for part in slices if part[-1][0] >= at - 20.0]
        sliding.drop(at)
        expected = Counter()
        for _, known, added in (one for part in slices for one in part):
            expected[known] += added

        assert sliding.sums == expected
