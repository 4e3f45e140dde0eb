"""vLLM's own series, re-exported as they are."""

import asyncio
import gzip
import re
from collections.abc import Sequence
from typing import Final

from sidecar.engine.exposition import Series, read_sample
from sidecar.engine.names import PREFIXES
from sidecar.export.exporter import GZIP_LEVEL

_NAME: Final = rf"(?P<name>(?:{'|'.join(PREFIXES)})[a-zA-Z0-9_:]+)"
_FAMILY: Final = re.compile(
    rf"# HELP {_NAME} .*\n# TYPE (?P=name) (?:counter|gauge|histogram|summary|untyped)\n"
)
_BETWEEN: Final = re.compile(r"\n(?=# (?!TYPE ))")  # families, and other comments
_SAMPLE: Final = re.compile(r"[a-zA-Z0-9_:]+(?:\{.*\})? [^ ]+")  # no time: vLLM writes none
_SUFFIXES: Final = ("", "_bucket", "_sum", "_count", "_total", "_created")
_EXEMPLAR: Final = re.compile(r" # \{.*")  # the text format has none
_MOST_READ: Final = 4  # times the limit: families that are too large or invalid take time, too


def own_series(page: bytes, limit: int) -> bytes:
    """The families of vLLM itself on its page, unchanged except that exemplars are removed.

    ``limit`` bounds the number of series. A family is exported completely or not at all: not if one
    of its lines is that of another, or would make Prometheus refuse the whole page.
    """
    exported: dict[str, str] = {}
    series = 0
    read = 0
    text = page.decode("utf-8", "replace")
    for family in _BETWEEN.split(text[: text.rfind("\n")]):
        head = _FAMILY.match(family)
        if head is None:
            continue

        name = head["name"]
        count = family.count("\n", head.end()) + 1
        read += count + 1
        if read > _MOST_READ * limit:
            break
        if name in exported or series + count > limit:
            continue

        lines = [
            _EXEMPLAR.sub("", line)
            for line in family[head.end() :].split("\n")
            if not line.startswith("#")
        ]
        if lines and _are_samples(lines, name):
            series += count
            exported[name] = head.group() + "\n".join([*lines, ""])

    return "".join(exported.values()).encode()


def _are_samples(lines: Sequence[str], family: str) -> bool:
    """Whether each line is a sample of the family, and of another series than the others."""
    found: set[Series] = set()
    for line in lines:
        sample = read_sample(line.encode()) if _SAMPLE.fullmatch(line) else None
        if sample is None:
            return False

        series, _ = sample
        if series in found or not _belongs(series, family):
            return False
        found.add(series)

    return True


def _belongs(series: Series, family: str) -> bool:
    if series.name not in {family + suffix for suffix in _SUFFIXES}:
        return False

    labels = [name for name, _ in series.labels]
    has_reserved = any(name.startswith("__") for name in labels)
    return len(set(labels)) == len(labels) and not has_reserved


class Reexport:
    """Does in threads what takes long: vLLM's page may have megabytes.

    What was made last is kept, since several may ask for the same.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._page = b""
        self._series = b""
        self._body = b""
        self._compressed = b""

    async def series(self, page: bytes, limit: int) -> bytes:
        """``own_series``."""
        async with self._lock:
            if page is not self._page:
                self._series = await asyncio.to_thread(own_series, page, limit)
                self._page = page
            return self._series

    async def compressed(self, body: bytes) -> bytes:
        """The body, compressed."""
        async with self._lock:
            if body is not self._body:
                self._compressed = await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL)
                self._body = body
            return self._compressed
