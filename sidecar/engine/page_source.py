"""The next snapshot of one vLLM server, at the lowest cost to vLLM."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sidecar.engine import names
from sidecar.engine.exposition import PageReader, Series
from sidecar.engine.fetch import Fetcher
from sidecar.engine.page_filter import WHOLE_PAGE, PageFilter
from sidecar.engine.snapshot import PageSnapshot, SnapshotReader
from sidecar.errors import BadStatus, Interrupted, PageError, ScrapeError, TimedOut
from sidecar.settings.groups import Limits, Scrape


@asynccontextmanager
async def page_source(
    scrape: Scrape, limits: Limits, *, whole: bool = False, is_persistent: bool = True
) -> AsyncIterator["PageSource"]:
    """The pages of the vLLM at ``vllm_url``; with ``whole``, never filtered.

    ``is_persistent`` is as in ``Fetcher``. The connection is closed when the block ends.
    """
    fetcher = Fetcher(
        scrape.vllm_url,
        timeout=scrape.scrape_timeout,
        page_bytes=limits.page_bytes,
        tls=scrape.tls if scrape.vllm_cert_file else scrape.tls(),
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
        self._filter = PageFilter() if filtered else None
        self._whole_pages = _Pages(limits)
        self._filtered_pages = _Pages(limits)
        self.whole_page = b""  # the last one, for re-exporting; empty after a failed poll

    async def next(self) -> PageSnapshot:
        """Fetches one page and reads it.

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
        """A filtered page; None if it is unavailable or incomplete, or the whole page is due."""
        if self._filter is None:
            return None

        path = self._filter.next_path()
        if not path:
            return None

        try:
            series, snapshot = await self._filtered_pages.read(await self._fetcher.get(path))
        except (BadStatus, Interrupted, PageError):
            self._filter.fail()
            return None
        except TimedOut:
            if self._filter.is_proven:
                raise  # vLLM is slow or down
            self._filter.fail()  # something in front of vLLM does not forward the query
            return None

        return snapshot if self._filter.has_all(series, snapshot.process_start) else None

    async def _whole(self) -> PageSnapshot:
        body = await self._fetcher.get(WHOLE_PAGE)
        series, snapshot = await self._whole_pages.read(body)
        self.whole_page = body

        if self._filter is not None:
            self._filter.learn(series, snapshot.process_start)
        return snapshot


class _Pages:
    """Reads one kind of page, whole or filtered: each is then like the one before it."""

    def __init__(self, limits: Limits) -> None:
        self._pages = PageReader(names.wanted(), limits)
        self._snapshots = SnapshotReader()

    async def read(self, body: bytes) -> tuple[tuple[Series, ...], PageSnapshot]:
        """The page's series and its snapshot.

        Read in a thread, so that the event loop stays responsive whatever the page contains. Raises
        what ``PageReader.read`` and ``SnapshotReader.read`` raise.
        """
        return await asyncio.to_thread(self._read, body)

    def _read(self, body: bytes) -> tuple[tuple[Series, ...], PageSnapshot]:
        page = self._pages.read(body)
        return page.series, self._snapshots.read(page)
