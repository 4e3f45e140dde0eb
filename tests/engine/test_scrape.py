"""The polling loop: never two polls at once, and none early.

Also what an expensive or failed one costs.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.scrape import Pacing, Poller
from sidecar.errors import PageTooLarge, TimedOut, Unreachable
from sidecar.settings.groups import Scrape


class Recorder:
    """A sink that keeps what it is given."""

    def __init__(self):
        self.pages = []
        self.errors = []

    def scraped(self, at, duration, interval, page):
        self.pages.append((at, duration, interval, page))

    def failed(self, at, error):
        self.errors.append((at, error))


class Source:
    """A server whose page takes some ``seconds``; ``most`` polls at once."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.polls = self.running = self.most = 0

    async def next(self):
        self.polls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        return self.polls


@asynccontextmanager
async def polling(source, interval):
    clock, sink = asyncio.get_running_loop().time, Recorder()
    scrape = Scrape.model_construct(scrape_interval=interval, scrape_cpu_share=1.0)
    task = asyncio.create_task(
        Poller(source, scrape, sink, wall_clock=clock, monotonic=clock).run()
    )
    yield sink
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_polls_never_overlap_and_their_times_rise(eventually):
    source = Source(0.02)  # longer than the interval
    async with polling(source, 0.005) as sink:
        await eventually(lambda: len(sink.pages) >= 10)
    assert source.most == 1
    times = [at for at, *_ in sink.pages]
    assert times == sorted(set(times))
    assert [page for *_, page in sink.pages] == list(range(1, len(times) + 1))
    # asyncio may wake a timer a clock tick early.
    assert all(duration >= 0.019 for _, duration, *_ in sink.pages)


async def test_no_poll_comes_before_the_interval_is_over(eventually):
    source = Source(0)
    async with polling(source, 3600.0) as sink:
        await eventually(lambda: sink.pages)
        for _ in range(50):
            await asyncio.sleep(0)
    assert source.polls == 1


@pytest.mark.parametrize(
    ("error", "pause"), [(PageTooLarge, 5.0), (TimedOut, 1.0), (Unreachable, 1.0)]
)
async def test_an_unusable_page_stretches_the_interval_and_a_failed_poll_does_not(error, pause):
    now = 0.0

    class Failing:
        async def next(self):
            nonlocal now
            now += 0.05
            raise error

    sink = Recorder()
    poller = Poller(Failing(), Scrape(), sink, wall_clock=lambda: now, monotonic=lambda: now)
    assert [await poller.poll() for _ in range(5)][-1] == pytest.approx(pause)
    assert [at for at, _ in sink.errors] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25])


@given(
    durations=st.lists(st.floats(0, 10), min_size=1, max_size=20),
    share=st.floats(0.0001, 1),
    interval=st.floats(0.1, 60),
    most=st.floats(0.1, 3600),
)
def test_the_quickest_of_the_last_five_pages_keeps_to_the_share(durations, share, interval, most):
    """Fewer than five do not stretch the interval.

    It stays within the maximum if it is not set above it.
    """
    options = {"scrape_interval": interval, "scrape_cpu_share": share, "scrape_max_interval": most}
    pacing = Pacing(Scrape.model_construct(**options))
    for number, duration in enumerate(durations, 1):
        pacing.arrived(duration)
        needed = min(durations[number - 5 : number]) / share if number >= 5 else 0
        assert pacing.interval == max(interval, min(needed, most))
