"""The next snapshot of one vLLM server, at the lowest cost to vLLM.

Rendering the whole page costs vLLM's API process 3 to 6 ms; ``/metrics/?name[]=...`` renders only
the families in use, for a tenth of that. This works if prometheus_client serves the page from one
process; with several API servers the page is empty. So the filter stays in use only if it returns
exactly the series of the whole page, and the whole page is fetched again at every tenth poll and
whenever the filtered one changes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

from sidecar.engine import names
from sidecar.engine.exposition import PageReader, Series
from sidecar.engine.fetch import Fetcher
from sidecar.engine.snapshot import PageSnapshot, SnapshotReader
from sidecar.errors import BadStatus, Interrupted, PageError, ScrapeError, TimedOut
from sidecar.settings.groups import Limits, Scrape

WHOLE_PAGE: Final = "/metrics"
# Filtered polls between two whole pages: a family that appears later is found within ten polls.
RECHECK: Final = 9
RETRY: Final = 600  # whole pages before a filter that failed is tried again


@asynccontextmanager
async def page_source(
    scrape: Scrape, limits: Limits, *, whole: bool = False, is_persistent: bool = True
) -> AsyncIterator["PageSource"]:
    """The pages of the vLLM at ``vllm_url``; with ``whole``, never filtered.

    ``is_persistent`` is as in ``Fetcher``, whose connection is closed when the block ends.
    """
    fetcher = Fetcher(
        scrape.vllm_url,
        timeout=scrape.scrape_timeout,
        page_bytes=limits.page_bytes,
        tls=scrape.tls(),
        is_persistent=is_persistent,
    )
    try:
        yield PageSource(fetcher, limits, filtered=scrape.scrape_filtered and not whole)
    finally:
        await fetcher.close()


class PageSource:
    """Fetches and reads one server's pages."""

    def __init__(self, fetcher: Fetcher, limits: Limits, *, filtered: bool) -> None:
        """``filtered`` allows fetching filtered pages."""
        self._fetcher = fetcher
        self._allowed = filtered
        self._all, self._part = _Pages(limits), _Pages(limits)
        self._filter = ""  # the path of the filtered page; empty while filtering is not in use
        # On the whole page that the filter was made from.
        self._expected: frozenset[Series] = frozenset()
        self._proven: tuple[Series, ...] = ()
        self._process_start: float | None = None  # on the last whole page
        self._filtered_left = self._whole_left = 0
        self.whole_page = b""  # the last one, for re-exporting; empty after a failed poll

    async def next(self) -> PageSnapshot:
        """Fetches and reads once.

        Raises:
            ScrapeError: from ``Fetcher.get``, ``PageReader.read`` or ``SnapshotReader.read``.
        """
        try:
            snapshot = await self._filtered() or await self._whole()
        except ScrapeError:
            self.whole_page = b""
            raise
        return snapshot

    async def _filtered(self) -> PageSnapshot | None:
        """A filtered page with the expected series.

        None if it has others or is unavailable, or if the whole page is due. A server that ignores
        the filter sends the whole page, which is just as good.
        """
        if not self._filter or self._filtered_left <= 0:
            return None
        self._filtered_left -= 1

        try:
            series, snapshot = await asyncio.to_thread(
                self._part.read, await self._fetcher.get(self._filter)
            )
            works = series is self._proven or frozenset(series) == self._expected
        except (BadStatus, Interrupted, PageError):
            works = False
        except TimedOut:
            if self._proven:
                raise  # vLLM is slow or down
            works = False  # something in front of vLLM does not forward the query

        if not works:
            # If the filter worked before, a different page means that vLLM changed; else, that
            # filters do not work.
            self._whole_left = 0 if self._proven else RETRY
            self._filter, self._proven = "", ()
            return None

        self._proven = series
        if snapshot.process_start != self._process_start:
            self._filtered_left = 0  # another process may have families that the filter leaves out
        return snapshot

    async def _whole(self) -> PageSnapshot:
        body = await self._fetcher.get(WHOLE_PAGE)
        series, snapshot = await asyncio.to_thread(self._all.read, body)
        self._process_start = snapshot.process_start
        self.whole_page = body
        self._whole_left -= 1
        if self._allowed and self._whole_left <= 0 and snapshot.process_start is not None:
            self._expect(series)
        return snapshot

    def _expect(self, series: tuple[Series, ...]) -> None:
        """From now on, requests only the names on this page.

        Its process start shows that it is of one process.
        """
        # vLLM logs the whole query at every poll, so it names only what is on this page.
        self._expected = frozenset(series)
        wanted = sorted({sample.name for sample in series})
        query = "&".join(f"name%5B%5D={quote(name, safe=':')}" for name in wanted)
        self._filter = f"{WHOLE_PAGE}/?{query}"
        self._filtered_left = RECHECK


class _Pages:
    """Reads pages of one kind.

    In a thread, so that the event loop stays responsive whatever they contain.
    """

    def __init__(self, limits: Limits) -> None:
        self._pages, self._snapshots = PageReader(names.wanted(), limits), SnapshotReader()

    def read(self, body: bytes) -> tuple[tuple[Series, ...], PageSnapshot]:
        """Raises what ``PageReader.read`` and ``SnapshotReader.read`` raise."""
        page = self._pages.read(body)
        return page.series, self._snapshots.read(page)
