"""When to ask vLLM for only the series in use, and whether it has sent all of them.

Rendering the whole page costs vLLM's API process 3 to 6 ms; ``/metrics/?name[]=...`` renders only
the families in use, for a tenth of that. This works if prometheus_client serves the page from one
process; with several API servers the page is empty. So the filter stays in use only if it returns
exactly the series of the whole page, and the whole page is fetched again at every tenth poll and
whenever the filtered one changes.
"""

from typing import Final
from urllib.parse import quote

from sidecar.engine.exposition import Series

WHOLE_PAGE: Final = "/metrics"
# Filtered polls between two whole pages: a family that appears later is found within ten polls.
RECHECK: Final = 9
RETRY: Final = 600  # whole pages before a filter that failed is tried again


class PageFilter:
    """The filter for one server's page, and whether it has worked so far."""

    def __init__(self) -> None:
        self._path = ""  # of the filtered page; empty while filtering is not in use
        # On the whole page that the filter was made from.
        self._expected: frozenset[Series] = frozenset()
        self._proven: tuple[Series, ...] = ()
        self._process_start: float | None = None  # on the last whole page
        self._filtered_left = 0
        self._whole_left = 0

    @property
    def is_proven(self) -> bool:
        """Whether the filter that is in use has worked."""
        return bool(self._proven)

    def next_path(self) -> str:
        """The path of the filtered page; empty if the whole page is due."""
        if not self._path or self._filtered_left <= 0:
            return ""

        self._filtered_left -= 1
        return self._path

    def has_all(self, series: tuple[Series, ...], process_start: float | None) -> bool:
        """Whether a filtered page has exactly the expected series; if not, the filter fails.

        A server that ignores the filter sends the whole page, which is just as good.
        """
        if series is not self._proven and frozenset(series) != self._expected:
            self.fail()
            return False

        self._proven = series
        if process_start != self._process_start:
            self._filtered_left = 0  # another process may have families that the filter leaves out
        return True

    def fail(self) -> None:
        """The filtered page is unavailable, or has other series: the filter is no longer in use.

        If it had worked before, vLLM has changed: the next whole page makes a new filter. Otherwise
        filters do not work here, and the next attempt comes after ``RETRY`` whole pages.
        """
        self._whole_left = 0 if self._proven else RETRY
        self._path = ""
        self._proven = ()

    def learn(self, series: tuple[Series, ...], process_start: float | None) -> None:
        """Makes the filter from a whole page, if one is due and the page is of one process.

        Only then does it have the start time of a process.
        """
        self._process_start = process_start
        self._whole_left -= 1
        if self._whole_left > 0 or process_start is None:
            return

        # vLLM logs the whole query at every poll, so it names only what is on this page.
        self._expected = frozenset(series)
        wanted = sorted({sample.name for sample in series})
        # Without escapes that uvicorn does not need, for the same reason.
        query = "&".join(f"name[]={quote(name, safe=':')}" for name in wanted)
        self._path = f"{WHOLE_PAGE}/?{query}"
        self._filtered_left = RECHECK
