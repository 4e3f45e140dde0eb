"""What commands that watch a vLLM for a while share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sidecar.engine.names import SPECULATION
from sidecar.engine.page_source import PageSource
from sidecar.engine.scrape import Poller, ScrapeSink
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import MeasurementError, ScrapeError
from sidecar.log import redacted
from sidecar.settings.groups import Scrape


async def first_page(source: PageSource, url: str) -> PageSnapshot:
    """The page of the vLLM at ``url``, which ``source`` reads: before a command waits or sends requests in vain.

    Raises:
        MeasurementError: there is none.
    """
    try:
        return await source.next()
    except ScrapeError as error:
        fault = f"cannot read vLLM's metrics at {redacted(url)} ({error.reason}: {error})"
        raise MeasurementError(f"{fault}; `specdec-sidecar check` shows why") from None


def speculates(page: PageSnapshot) -> bool:
    """Whether the page has vLLM's counters of speculation, which it has from the start."""
    return any(counter in engine.counters for engine in page.engines for counter in SPECULATION)


@asynccontextmanager
async def polling(source: PageSource, scrape: Scrape, sink: ScrapeSink) -> AsyncIterator[Poller]:
    """Polls until the end of the block, which raises what has ended the polls before."""
    poller = Poller(source, scrape, sink)
    task = asyncio.create_task(poller.run())
    try:
        yield poller
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
