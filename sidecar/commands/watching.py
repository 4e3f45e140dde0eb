"""Shared by the commands that watch a vLLM for a while."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sidecar.engine.page_source import PageSource
from sidecar.engine.scrape import Poller, ScrapeSink
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import MeasurementError, ScrapeError
from sidecar.log import redacted
from sidecar.settings.groups import Scrape


async def first_page(source: PageSource, url: str) -> PageSnapshot:
    """Reads the first page of the vLLM at ``url``, before a command waits or sends requests in vain.

    Raises:
        MeasurementError: it cannot be read.
    """
    try:
        return await source.next()
    except ScrapeError as error:
        fault = f"cannot read vLLM's metrics at {redacted(url)} ({error.reason}: {error})"
        raise MeasurementError(f"{fault}; `specdec-sidecar check` shows why") from None


@asynccontextmanager
async def polling(source: PageSource, scrape: Scrape, sink: ScrapeSink) -> AsyncIterator[Poller]:
    """Polls until the end of the block; if an error ended the polls earlier, raises it there."""
    poller = Poller(source, scrape, sink)
    task = asyncio.create_task(poller.run())
    try:
        yield poller
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
