"""Polling continues whatever vLLM answers."""

import asyncio

import pytest
from aiohttp import web

from sidecar.engine.fetch import Fetcher
from sidecar.engine.page_source import PageSource
from sidecar.engine.scrape import Poller
from sidecar.errors import PageTooLarge, TimedOut, Unreachable
from sidecar.settings.groups import Limits, Scrape


class Recorder:
    """A sink that keeps what it is given."""

    def __init__(self):
        self.pages = []
        self.errors = []

    def scraped(self, at, duration, interval, page):
        self.pages.append((at, duration, interval, page))

    def failed(self, at, error):
        self.errors.append((at, error))


@pytest.fixture
def polling():
    """Runs a poller against a URL until the block ends: ``async with polling(url, …) as sink``."""

    class Polling:
        def __init__(self, url, timeout=120.0, filtered=False, **pacing):
            self.fetcher = Fetcher(url, timeout=timeout)
            options = {"interval": 0.01, "cpu_share": 1.0, "max_interval": 60.0, **pacing}
            scrape = Scrape.model_construct(**{f"scrape_{name}": value for name, value in options.items()})
            self.sink = Recorder()
            self.clock = asyncio.get_running_loop().time
            source = PageSource(self.fetcher, Limits(), filtered=filtered)
            self.poller = Poller(source, scrape, self.sink, wall_clock=self.clock, monotonic=self.clock)

        async def __aenter__(self):
            self.task = asyncio.create_task(self.poller.run())
            return self.sink

        async def __aexit__(self, *_):
            assert not self.task.done()
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            await self.fetcher.close()

    return Polling


async def test_polls_never_overlap_and_their_times_rise(served, polling, eventually, recorded):
    running = most = 0

    async def handler(_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)  # longer than the interval
        running -= 1
        return web.Response(body=recorded("vllm-0.33.0.prom"))

    async with served(handler) as url, polling(url, interval=0.005) as sink:
        await eventually(lambda: len(sink.pages) >= 10)
    assert most == 1
    times = [at for at, *_ in sink.pages]
    assert times == sorted(set(times))
    assert all(duration >= 0.02 for _, duration, *_ in sink.pages)


@pytest.mark.parametrize(("error", "pause"), [(PageTooLarge, 5.0), (TimedOut, 1.0), (Unreachable, 1.0)])
async def test_an_unusable_page_costs_vllm_as_much_as_any_other(error, pause):
    now = 0.0

    class Source:
        async def next(self):
            nonlocal now
            now += 0.05
            raise error

    sink = Recorder()
    poller = Poller(Source(), Scrape(), sink, wall_clock=lambda: now, monotonic=lambda: now)
    assert [await poller.poll() for _ in range(5)][-1] == pytest.approx(pause)
    assert [at for at, _ in sink.errors] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25])


async def test_the_pause_is_kept(served, polling, eventually, recorded, http):
    """No poll comes early, whatever else happens meanwhile."""
    polled = 0

    async def handler(request):
        nonlocal polled
        polled += request.path == "/metrics"
        return web.Response(body=recorded("vllm-0.33.0.prom"))

    async with served(handler) as url, polling(url, interval=3600.0) as sink:
        await eventually(lambda: sink.pages)
        for _ in range(50):
            async with http.get(f"{url}/other") as response:
                await response.read()
    assert polled == 1
