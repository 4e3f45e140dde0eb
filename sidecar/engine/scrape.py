"""The polling loop of one vLLM server, one poll at a time, and how often it polls."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sidecar.engine.page_source import PageSource
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import PageError, ScrapeError
from sidecar.settings.groups import Scrape

_RECENT = 5  # pages; the fastest shows what a page costs, since others may have waited as well


class ScrapeSink(Protocol):
    """Receives the results of polls. Times are in Unix seconds, durations in seconds."""

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        """A poll returned a page; the next poll starts ``interval`` after this one started."""

    def failed(self, at: float, error: ScrapeError) -> None:
        """A poll returned no page."""


class Pacing:
    """Decides the seconds between the starts of two polls.

    The configured interval, unless that costs vLLM too much.
    """

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self.interval = scrape.scrape_interval

    def arrived(self, duration: float) -> None:
        """Records that a page, usable or not, took ``duration`` seconds."""
        self._durations.append(duration)
        # A sidecar that starts while vLLM is busy must not slow down because its first poll waited.
        cost = min(self._durations) if len(self._durations) == _RECENT else 0.0
        affordable = cost / self._scrape.scrape_cpu_share

        # A configured interval above the maximum is kept.
        longest = max(self._scrape.scrape_max_interval, self._scrape.scrape_interval)
        self.interval = min(max(self._scrape.scrape_interval, affordable), longest)


class Poller:
    """Polls one server and delivers the results to one sink."""

    def __init__(
        self,
        source: PageSource,
        scrape: Scrape,
        sink: ScrapeSink,
        *,
        wall_clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._pacing = Pacing(scrape)
        self._sink = sink
        self._wall_clock = wall_clock
        self._monotonic = monotonic

    async def run(self) -> None:
        """Polls until cancelled."""
        while True:
            started = self._monotonic()
            interval = await self.poll()
            await asyncio.sleep(max(interval - (self._monotonic() - started), 0))

    async def poll(self) -> float:
        """Polls once; returns the seconds from its start to the start of the next poll."""
        wall = self._wall_clock()
        started = self._monotonic()
        try:
            page = await self._source.next()
        except ScrapeError as error:
            if isinstance(error, PageError):  # it cost vLLM as much as a usable one
                self._pacing.arrived(self._monotonic() - started)
            self._sink.failed(self._wall_clock(), error)
        else:
            duration = self._monotonic() - started
            self._pacing.arrived(duration)
            # vLLM read its counters between the request and the response.
            self._sink.scraped(wall + duration / 2, duration, self._pacing.interval, page)

        return self._pacing.interval
