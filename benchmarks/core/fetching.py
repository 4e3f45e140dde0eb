"""How long a running vLLM takes for its whole page, and for the one of nine polls in ten.

Usage: python -m benchmarks.core.fetching http://127.0.0.1:8000
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.table import Row, report
from sidecar.engine import names
from sidecar.engine.exposition import PageReader
from sidecar.engine.fetch import Fetcher
from sidecar.engine.page_filter import WHOLE_PAGE, PageFilter
from sidecar.engine.snapshot import SnapshotReader
from sidecar.settings.groups import Limits

_TURNS: Final = 200
_PAUSE: Final = 0.02  # seconds, so that vLLM has time for its other work


def fetch_rows(url: str) -> Iterator[Row]:
    """The medians of both, which are fetched in turns over one connection."""
    whole, filtered = asyncio.run(_times(url))
    ratio = filtered / whole
    yield Row(
        "the page of nine polls in ten ÷ the whole one",
        f"{filtered * 1e3:.2f} ÷ {whole * 1e3:.2f} ms",
        ratio,
        at_most=0.33,
    )


async def _times(url: str) -> tuple[float, float]:
    """The median seconds of a whole page and of a filtered one."""
    limits = Limits()
    fetcher = Fetcher(url, timeout=10.0, page_bytes=limits.page_bytes)
    try:
        path = _filtered_path(await fetcher.get(WHOLE_PAGE), limits)
        whole = []
        filtered = []
        for _ in range(_TURNS):
            whole.append(await _timed(fetcher, WHOLE_PAGE))
            filtered.append(await _timed(fetcher, path))
    finally:
        await fetcher.close()

    return statistics.median(whole), statistics.median(filtered)


def _filtered_path(body: bytes, limits: Limits) -> str:
    page = PageReader(names.wanted(), limits).read(body)
    page_filter = PageFilter()
    page_filter.learn(page.series, SnapshotReader().read(page).process_start)
    return page_filter.next_path()


async def _timed(fetcher: Fetcher, path: str) -> float:
    await asyncio.sleep(_PAUSE)
    began = time.perf_counter()
    await fetcher.get(path)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(report(fetch_rows(sys.argv[1])))
