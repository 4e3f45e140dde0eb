"""When the next poll comes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.pacing import Pacing
from sidecar.settings.groups import Scrape


def pacing(**options):
    return Pacing(Scrape.model_construct(**{f"scrape_{name}": value for name, value in options.items()}), lambda: 1.0)


def test_a_quick_scrape_keeps_the_configured_interval():
    assert pacing(interval=1.0, cpu_share=0.01).succeeded(0.005) == 1.0


def fifth(one, duration):
    return [one.succeeded(duration) for _ in range(5)][-1]


def test_an_expensive_scrape_stretches_the_interval():
    assert fifth(pacing(interval=1.0, cpu_share=0.01), 0.05) == pytest.approx(5.0)
    assert fifth(pacing(interval=1.0, cpu_share=0.01, max_interval=3.0), 0.05) == 3.0
    assert fifth(pacing(interval=10.0, cpu_share=0.01, max_interval=3.0), 0.001) == 10.0


@pytest.mark.parametrize("before", [0, 1])
def test_a_slow_scrape_does_not_stretch_it_be_it_the_first_and_five_do(before):
    one = pacing(interval=1.0, cpu_share=0.01)
    for _ in range(before):
        one.succeeded(0.005)
    assert [one.succeeded(0.05) for _ in range(5)] == pytest.approx([1.0, 1.0, 1.0, 1.0, 5.0])
    assert one.succeeded(0.005) == 1.0


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.floats(0.0001, 1), st.floats(0.1, 60))
def test_share_is_kept_by_the_quickest_of_recent_scrapes(durations, share, interval):
    one = pacing(interval=interval, cpu_share=share, max_interval=1e9)
    for index, duration in enumerate(durations):
        pause = one.succeeded(duration)
        quickest = min(durations[index - 4 : index + 1]) if index >= 4 else 0.0
        assert pause == one.interval >= interval
        assert quickest <= share * pause * (1 + 1e-9)


def test_backoff_doubles_up_to_its_ceiling():
    one = pacing(interval=1.0, backoff_max=10.0)
    assert [one.failed() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    one.succeeded(0.001)
    assert one.failed() == 1.0


def test_an_unreachable_vllm_is_polled_at_the_interval():
    one = pacing(interval=1.0, backoff_max=10.0)
    assert [one.failed(unreachable=True) for _ in range(6)] == [1.0] * 6
    assert [one.failed() for _ in range(2)] == [1.0, 2.0]


@given(st.integers(1, 3000), st.floats(0.1, 60), st.integers())
def test_backoff_is_bounded_and_jittered(failures, interval, seed):
    one = Pacing(Scrape(scrape_interval=interval, scrape_backoff_max=10.0), random.Random(seed).random)
    pauses = [one.failed() for _ in range(failures)]
    assert all(interval / 2 <= pause <= max(10.0, interval) for pause in pauses)


def test_two_sidecars_do_not_come_back_as_one():
    one, other = (Pacing(Scrape(), random.Random(seed).random) for seed in (1, 2))
    assert [one.failed() for _ in range(5)] != [other.failed() for _ in range(5)]
