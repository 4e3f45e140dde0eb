"""When the next poll comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.scrape import Pacing
from sidecar.settings.groups import Scrape


def pacing(**options):
    return Pacing(Scrape.model_construct(**{f"scrape_{name}": value for name, value in options.items()}))


def after(one, *durations):
    """The interval after each of these pages."""
    intervals = []
    for duration in durations:
        one.arrived(duration)
        intervals.append(one.interval)
    return intervals


@pytest.mark.parametrize(
    ("options", "duration", "interval"),
    [
        ({"interval": 1.0}, 0.005, 1.0),
        ({"interval": 1.0}, 0.05, 5.0),
        ({"interval": 1.0, "max_interval": 3.0}, 0.05, 3.0),
        ({"interval": 10.0, "max_interval": 3.0}, 0.001, 10.0),
    ],
)
def test_an_expensive_page_stretches_the_interval(options, duration, interval):
    assert after(pacing(cpu_share=0.01, **options), *[duration] * 5)[-1] == pytest.approx(interval)


@pytest.mark.parametrize("before", [0, 1])
def test_a_slow_page_does_not_stretch_it_be_it_the_first_and_five_do(before):
    one = pacing(interval=1.0, cpu_share=0.01)
    after(one, *[0.005] * before)
    assert after(one, *[0.05] * 5) == pytest.approx([1.0, 1.0, 1.0, 1.0, 5.0])
    assert after(one, 0.005) == [1.0]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.floats(0.0001, 1), st.floats(0.1, 60))
def test_share_is_kept_by_the_quickest_of_recent_pages(durations, share, interval):
    one = pacing(interval=interval, cpu_share=share, max_interval=1e9)
    for index, pause in enumerate(after(one, *durations)):
        quickest = min(durations[index - 4 : index + 1]) if index >= 4 else 0.0
        assert pause >= interval
        assert quickest <= share * pause * (1 + 1e-9)
