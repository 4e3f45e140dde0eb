"""How long a running vLLM takes for its whole page, and for the one of nine polls in ten.

Usage: python -m benchmarks.core.fetching http://127.0.0.1:8000
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from benchmarks.table import Row, report
from sidecar.engine import names
from sidecar.engine.exposition import PageReader
from sidecar.engine.fetch import Fetcher
from sidecar.engine.page_filter import WHOLE_PAGE, PageFilter
from sidecar.engine.snapshot import SnapshotReader
from sidecar.settings.groups import Limits

_NO_PAGE: Final = "/version"  # a few bytes, of which vLLM asks no engine
_TURNS: Final = 200
_PAUSE: Final = 0.02  # seconds, so that vLLM has time for its other work


class _Times(NamedTuple):
    """Median seconds of a response without a page, of a whole page, and of a filtered one."""

    empty: float
    whole: float
    filtered: float


def fetch_rows(url: str) -> Iterator[Row]:
    """What both pages take beyond a response without one; in turns, over one connection."""
    times = asyncio.run(_times(url))
    whole = times.whole - times.empty
    filtered = times.filtered - times.empty
    yield Row(
        f"the page of nine polls in ten ÷ the whole one, beyond the {times.empty * 1e3:.2f} ms of "
        "any response",
        f"{filtered * 1e3:.2f} ÷ {whole * 1e3:.2f} ms",
        filtered / whole,
        at_most=0.33,
    )


async def _times(url: str) -> _Times:
    limits = Limits()
    fetcher = Fetcher(url, timeout=10.0, page_bytes=limits.page_bytes)
    try:
        path = _filtered_path(await fetcher.get(WHOLE_PAGE), limits)
        empty = []
        whole = []
        filtered = []
        for _ in range(_TURNS):
            empty.append(await _timed(fetcher, _NO_PAGE))
            whole.append(await _timed(fetcher, WHOLE_PAGE))
            filtered.append(await _timed(fetcher, path))
    finally:
        await fetcher.close()

    return _Times(
        empty=statistics.median(empty),
        whole=statistics.median(whole),
        filtered=statistics.median(filtered),
    )


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
