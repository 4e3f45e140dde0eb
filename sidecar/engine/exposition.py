"""Prometheus text exposition, bytes to samples: only the wanted ones, at the cost of a few C calls.

vLLM's page has some 650 lines, a quarter of which matter, and from poll to poll only the numbers change. So the
first page is read line by line (``lines.py``) and its layout remembered: for each wanted family the ``# TYPE``
header and the sample keys under it. Later pages are read by finding each header, splitting the block under it
on white space and comparing the keys with the remembered ones. Any difference sends the page to the line reader,
which alone decides on the grammar. Every ``RECHECK`` polls the number of lines and the list of all families are
compared too, to find what appears elsewhere on the page.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.engine.lines import LineReader, Series, Wanted
from sidecar.errors import NotAnExposition, PageTooLarge, TruncatedPage
from sidecar.settings.groups import Limits

RECHECK = 8  # polls between two comparisons of what is outside the remembered blocks

_TYPE_LINE = re.compile(rb"# TYPE (\S+) \w+\n")
_NEAR = 4096  # bytes: the next header is searched here first, since a short search is cheaper


@dataclass(frozen=True, slots=True)
class Layout:
    """Which series a page holds. The same object is returned while the page keeps its shape.

    ``families`` are the names in all ``# TYPE`` lines, wanted or not, with their prefixes.
    """

    series: tuple[Series, ...]
    families: frozenset[str]


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted samples of one page: ``values[i]`` belongs to ``layout.series[i]``."""

    layout: Layout
    values: Sequence[float]
    malformed: int  # lines that were skipped because they break the grammar


@dataclass(frozen=True, slots=True)
class _Block:
    header: bytes
    keys: list[bytes]
    least: int  # bytes: all keys with a one-digit value each; no block with these keys is shorter


@dataclass(frozen=True, slots=True)
class _Memory:
    layout: Layout
    blocks: tuple[_Block, ...]
    headers: list[bytes]
    lines: int


class PageReader:
    """Reads the pages of one server; keeps the layout of the last one between calls."""

    def __init__(self, wanted: Wanted, limits: Limits) -> None:
        self._wanted = wanted
        self._limits = limits
        self._lines = LineReader(wanted, limits)
        self._layout: Layout | None = None
        self._memory: _Memory | None = None
        self._polls = 0

    def read(self, body: bytes, *, thorough: bool = False) -> Page:
        """The wanted samples of a page; ``thorough`` also looks for new families (else every ``RECHECK`` polls).

        Raises:
            PageTooLarge: the page has more bytes or wanted series than the limit.
            NotAnExposition: the body is not Prometheus text.
            TruncatedPage: the last line has no end.
        """
        return self.recall(body, thorough=thorough) or self.learn(body)

    def recall(self, body: bytes, *, thorough: bool = False) -> Page | None:
        """The same in some 0.1 ms if the page has the remembered layout, else None. Raises as ``read``."""
        if len(body) > self._limits.page_bytes:
            raise PageTooLarge(f"{len(body)} bytes; limit {self._limits.page_bytes}")
        if body and not body.endswith(b"\n"):
            _refuse_unended(body)
        self._polls += 1
        if (memory := self._memory) is not None:
            fresh = not (thorough or self._polls % RECHECK == 0) or _is_complete(body, memory)
            if fresh and (values := _read_blocks(body, memory.blocks)) is not None:
                return Page(memory.layout, values, 0)
        return None

    def learn(self, body: bytes) -> Page:
        """The same, line by line, at up to 0.4 ms a KB; remembers the layout. Raises as ``read``."""
        found, malformed = self._lines.read(body)
        values = list(found.values())
        headers = _TYPE_LINE.findall(body)
        layout = Layout(tuple(found), frozenset(name.decode("utf-8", "replace") for name in headers))
        if self._layout == layout:
            layout = self._layout
        self._layout = layout
        self._memory = None
        blocks = _remember(body, self._wanted)
        # Without vLLM's own series there is nothing to compare the next page with.
        ours = any(series.name.startswith(self._wanted.prefixes) for series in found)
        if ours and malformed == 0 and _same(_read_blocks(body, blocks), values):
            self._memory = _Memory(layout, blocks, headers, body.count(b"\n"))
        return Page(layout, values, malformed)


def _refuse_unended(body: bytes) -> None:
    head = body[:256].lstrip()
    if b"\0" in body[:4096] or head.startswith((b"<", b"{", b"\x1f\x8b")):
        raise NotAnExposition(f"the body begins with {head[:16]!r}")
    raise TruncatedPage(f"{len(body)} bytes and the last line has no end")


def _read_blocks(body: bytes, blocks: tuple[_Block, ...]) -> list[float] | None:
    """The values under the remembered headers; None if anything but a number has changed."""
    values: list[bytes] = []
    position = 0
    for block in blocks:
        found = body.find(block.header, position, position + _NEAR)
        if found < 0 and (found := body.find(block.header, position)) < 0:
            return None
        start = found + len(block.header)
        position = body.find(b"\n#", start + block.least - 1)
        if position < 0:
            position = len(body)
        tokens = body[start:position].split()
        if tokens[::2] != block.keys:
            return None
        values += tokens[1::2]
    try:
        numbers = list(map(float, values))
    except ValueError:
        return None
    # Python's float() accepts "1_0"; the exposition format does not.
    return None if b"_" in b"".join(values) else numbers


def _is_complete(body: bytes, memory: _Memory) -> bool:
    """Whether the page has as many lines and the same families, in and outside the blocks, as when it was learned."""
    return body.count(b"\n") == memory.lines and _TYPE_LINE.findall(body) == memory.headers


def _same(values: list[float] | None, others: list[float]) -> bool:
    """Whether all values are equal, NaN to NaN."""
    return values is not None and list(map(repr, values)) == list(map(repr, others))


def _remember(body: bytes, wanted: Wanted) -> tuple[_Block, ...]:
    blocks: list[_Block] = []
    for match in _TYPE_LINE.finditer(body):
        if match[1].decode("utf-8", "replace") in wanted.names:
            end = body.find(b"\n#", match.end() - 1)
            keys = body[match.end() : end if end >= 0 else len(body)].split()[::2]
            blocks.append(_Block(match[0], keys, sum(len(key) + len(" 0\n") for key in keys)))
    return tuple(blocks)
