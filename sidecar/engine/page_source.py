"""The next snapshot of one vLLM server, at the lowest cost to vLLM.

Rendering the whole page costs vLLM's API process 3 to 6 ms; ``/metrics/?name[]=...`` renders only
the families in use, for a tenth of that. This works if prometheus_client serves the page from one
process; with several API servers the page is empty. So the filter stays in use only if it returns
exactly the series of the whole page, and the whole page is fetched again at every tenth poll and
whenever the filtered one changes.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import aiohttp
from yarl import URL

from sidecar.engine import names
from sidecar.engine.exposition import PageReader, Series
from sidecar.engine.snapshot import PageSnapshot, SnapshotReader
from sidecar.errors import (
    BadStatus,
    Interrupted,
    PageError,
    PageTooLarge,
    ScrapeError,
    TimedOut,
    Unreachable,
)
from sidecar.settings.groups import Limits, Scrape

# Text format, uncompressed: compressing would cost vLLM CPU time.
_HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}


class Fetcher:
    """GETs from one vLLM server over one persistent connection."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float = 5.0,
        page_bytes: int = 8 * 1024 * 1024,
        tls: ssl.SSLContext | bool = True,
    ) -> None:
        """Needs a running event loop. ``timeout`` is the limit in seconds for a whole exchange."""
        self._base = base_url
        self._timeout = timeout
        self._page_bytes = page_bytes
        self._tls = tls
        self._session = aiohttp.ClientSession(
            headers=_HEADERS,
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=1),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def get(self, path: str) -> bytes:
        """The body at ``path``, which is sent as it is, without escaping.

        Raises:
            Unreachable: no connection.
            TimedOut: the body was not complete in time.
            BadStatus: a status other than 200; redirects are not followed, as they could lead
                anywhere.
            Interrupted: the response was cut off or was not valid HTTP.
            PageTooLarge: more bytes than the limit; the rest is not read.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._get(path)
        except TimeoutError as error:
            raise TimedOut(f"incomplete after {self._timeout:g} s") from error
        except (
            aiohttp.ServerDisconnectedError,
            aiohttp.ClientPayloadError,
            aiohttp.ClientResponseError,
        ) as error:
            raise Interrupted(type(error).__name__) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(_reason(error)) from error

    async def close(self) -> None:
        """Closes the connection."""
        await self._session.close()

    async def _get(self, path: str) -> bytes:
        url = URL(self._base + path, encoded=True)
        async with self._session.get(url, ssl=self._tls, allow_redirects=False) as response:
            if response.status != 200:
                raise BadStatus(f"status {response.status}")
            body = await read_at_most(response, self._page_bytes)
        if body is None:
            raise PageTooLarge(f"more than {self._page_bytes} bytes")
        return body


async def read_at_most(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The whole body; if it exceeds ``most`` bytes, closes the connection and returns None.

    aiohttp's own ``content.read(most)`` returns after the first chunk.
    """
    pieces: list[bytes] = []
    received = 0
    async for piece in response.content.iter_any():
        received += len(piece)
        if received > most:
            response.close()
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _reason(error: Exception) -> str:
    """The cause without any addresses, which may contain credentials."""
    cause = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {cause}" if cause else type(error).__name__


WHOLE_PAGE = "/metrics"
# Filtered polls between two whole pages: a family that appears later is found within ten polls.
RECHECK = 9
RETRY = 600  # whole pages before a filter that failed is tried again


@asynccontextmanager
async def page_source(
    scrape: Scrape, limits: Limits, *, whole: bool = False
) -> AsyncIterator["PageSource"]:
    """The pages of the vLLM at ``vllm_url``; with ``whole``, never filtered.

    The connection is closed when the block ends.
    """
    fetcher = Fetcher(
        scrape.vllm_url,
        timeout=scrape.scrape_timeout,
        page_bytes=limits.page_bytes,
        tls=scrape.tls(),
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
        query = "&".join(f"name%5B%5D={quote(name)}" for name in wanted)
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
