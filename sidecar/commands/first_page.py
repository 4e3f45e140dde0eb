"""A vLLM's first page: shows that a command cannot do its work before it waits or sends requests."""

from sidecar.engine.names import SPECULATION
from sidecar.engine.page_source import PageSource
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import MeasurementError, ScrapeError
from sidecar.log import redacted


async def first_page(source: PageSource, url: str) -> PageSnapshot:
    """The page of the vLLM at ``url``, which ``source`` reads.

    Raises:
        MeasurementError: there is none.
    """
    try:
        return await source.next()
    except ScrapeError as error:
        fault = f"cannot read vLLM's page at {redacted(url)} ({error.reason}: {error})"
        raise MeasurementError(f"{fault}; `specdec-sidecar check` shows why") from None


def speculates(page: PageSnapshot) -> bool:
    """Whether the page has vLLM's counters of speculation, which it has from the start."""
    return any(counter in engine.counters for engine in page.engines for counter in SPECULATION)
