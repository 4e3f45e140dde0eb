"""Reads the wanted samples from a page in Prometheus's text format, at the cost of a few C calls.

vLLM's page has about 650 lines, a quarter of which matter, and from poll to poll only the numbers change. So the
first page is read line by line (``lines.py``), and its shape is remembered: the number of lines, and the text before
the value in each line that matters. Later pages are split into lines and compared with that shape. Any difference
sends the page to the line reader, which alone decides what is valid.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.engine.lines import Series, read_lines
from sidecar.errors import NotAnExposition, PageTooLarge, TruncatedPage
from sidecar.settings.groups import Limits

_TYPE_LINE = re.compile(rb"# TYPE \S+ \w+\n")


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted samples of one page: ``values[i]`` belongs to ``series[i]``.

    ``series`` is the same object while the page keeps its shape.
    """

    series: tuple[Series, ...]
    values: Sequence[float]
    malformed: int  # lines of wanted samples that were skipped because they break the grammar


@dataclass(frozen=True, slots=True)
class _Memory:
    """Where a page with this number of ``lines`` has its wanted samples: ``keys[i]`` in line ``places[i]``."""

    lines: int
    places: tuple[int, ...]
    keys: list[bytes]


class PageReader:
    """Reads the pages of one server; remembers the shape of the last one."""

    def __init__(self, wanted: frozenset[bytes], limits: Limits) -> None:
        """``wanted`` are the full names of the samples needed."""
        self._wanted = wanted
        self._limits = limits
        self._series: tuple[Series, ...] = ()
        self._memory: _Memory | None = None

    def read(self, body: bytes) -> Page:
        """The wanted samples of a page.

        Raises:
            PageTooLarge: the page has more bytes, lines or wanted series than the limit.
            NotAnExposition: the body has neither a wanted sample nor a ``# TYPE`` line.
            TruncatedPage: the last line does not end with a newline.
        """
        if len(body) > self._limits.page_bytes:
            raise PageTooLarge(f"{len(body)} bytes; limit {self._limits.page_bytes}")
        if self._memory is None or not body.endswith(b"\n") or (values := _values(body, self._memory)) is None:
            return self._learn(body)
        return Page(self._series, values, 0)

    def _learn(self, body: bytes) -> Page:
        """Reads the page line by line and remembers its shape. Raises what ``read`` raises."""
        lines = read_lines(body, self._wanted, self._limits.series)
        if not lines.samples and not _TYPE_LINE.search(body):
            raise NotAnExposition(f"the body begins with {body[:16]!r}")
        if not body.endswith(b"\n"):
            raise TruncatedPage(f"{len(body)} bytes and the last line has no end")
        series = tuple(lines.samples)
        if self._series != series:
            self._series = series
        page = Page(self._series, list(lines.samples.values()), lines.malformed)
        self._memory = _remember(body, page, lines.places)
        return page


def _remember(body: bytes, page: Page, places: tuple[int, ...]) -> _Memory | None:
    """The page's shape; None if a page of that shape could be misread: with malformed lines, or white space in keys."""
    if page.malformed or not places:
        return None
    lines = body.split(b"\n")
    keys = b"\n".join([lines[place] for place in places]).split()[::2]
    memory = _Memory(len(lines), places, keys)
    values = _values(body, memory)
    # Compared as text, since NaN differs from NaN.
    return memory if values is not None and list(map(repr, values)) == list(map(repr, page.values)) else None


def _values(body: bytes, memory: _Memory) -> list[float] | None:
    """The values on a page; None if anything but a number has changed in the lines that matter."""
    lines = body.split(b"\n", memory.lines)  # no more than that: there may be millions
    if len(lines) != memory.lines:
        return None
    tokens = b"\n".join([lines[place] for place in memory.places]).split()
    if tokens[::2] != memory.keys or len(tokens) % 2:  # odd: the last line has no value
        return None
    values = tokens[1::2]
    try:
        numbers = list(map(float, values))
    except ValueError:
        return None
    # Python's float() accepts "1_0"; the exposition format does not.
    return None if b"_" in b"".join(values) else numbers
