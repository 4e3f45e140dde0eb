"""The exposition grammar, line by line: it decides what is valid, and is the slow path of the reader.

Grammar: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4). The additions of OpenMetrics
1.0 (``# EOF``, exemplars) are accepted, since old vLLM versions serve them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sidecar.errors import NotAnExposition, PageTooLarge
from sidecar.settings.groups import Limits

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|(?=\}))')
_QUOTED_NAME = re.compile(r'\{[ \t]*"(?:[^"\\]|\\.)*"[ \t]*[,}]')
# Printable ASCII without "_": float() would also accept "1_0" and digits of other scripts.
_VALUE = re.compile(r"[ \t]+([!-^`-~]+)(?:[ \t]+-?[\d.]+)?[ \t]*(?:# \{.*)?$")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}

JUDGED_LINES = 10_000  # beyond these, only lines that may be wanted are read


@dataclass(frozen=True, slots=True)
class Wanted:
    """The full names of the samples needed (``x_total``, ``x_bucket``).

    Each name begins with one of ``prefixes``, except for a few that may be missed on a very long page.
    """

    prefixes: tuple[str, ...]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Series:
    """One time series: its sample name, prefix included, and its labels in the page's order."""

    name: str
    labels: tuple[tuple[str, str], ...]


class LineReader:
    """Reads pages; stateless."""

    def __init__(self, wanted: Wanted, limits: Limits) -> None:
        self._wanted = wanted
        self._limits = limits
        self._maybe_wanted = re.compile(
            rb"^(?:%s)" % b"|".join(re.escape(prefix.encode()) for prefix in wanted.prefixes),
            re.MULTILINE,
        )

    def read(self, body: bytes) -> tuple[dict[Series, float], tuple[int, ...], int]:
        """The wanted samples, and how many lines were skipped: malformed or overlong ones, and repeated series.

        Between the two: the numbers of the samples' lines, from 0, of those among the first ``JUDGED_LINES``.

        Raises:
            PageTooLarge: more wanted series than the limit.
            NotAnExposition: more lines are malformed than valid.
        """
        found: dict[Series, float] = {}
        places: list[int] = []
        malformed = good = 0
        for place, line in enumerate(self._lines(body)):
            if line.startswith(b"#") or not line:
                good += line.startswith((b"# TYPE ", b"# HELP "))
                continue
            sample = self._sample(line) if len(line) <= self._limits.line_bytes else None
            if sample is None or sample[0] in found:
                malformed += 1
                continue
            good += 1
            if sample[1] is not None:
                found[sample[0]] = sample[1]
                if place < JUDGED_LINES:
                    places.append(place)
                if len(found) > self._limits.series:
                    raise PageTooLarge(f"more than {self._limits.series} series of the families in use")
        if malformed > good:
            raise NotAnExposition(f"{malformed} of {malformed + good} lines are malformed")
        return found, tuple(places), malformed

    def _lines(self, body: bytes) -> Iterator[bytes]:
        """The first ``JUDGED_LINES`` lines; after them those that begin with a wanted prefix."""
        start = 0
        for _ in range(JUDGED_LINES):
            if start >= len(body):
                return
            end = _line_end(body, start)
            yield body[start:end]
            start = end + 1
        for match in self._maybe_wanted.finditer(body, start):
            yield body[match.start() : _line_end(body, match.start())]

    def _sample(self, line: bytes) -> tuple[Series, float | None] | None:
        """The series and value of a line, the value None if it is not wanted; None for a malformed line."""
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return None
        name = _NAME.match(text)
        if name is None:
            # A quoted name (UTF-8 names, format 1.0.0) is valid, and never one of vLLM's.
            return (_UNWANTED, None) if _QUOTED_NAME.match(text) else None
        wanted = name[0] in self._wanted.names
        parsed = _labels(text, name.end(), self._limits.labels)
        if parsed is None or (match := _VALUE.match(text, parsed[1])) is None:
            return None
        try:
            value = float(match[1])
        except ValueError:
            return None
        return (Series(name[0], parsed[0]), value) if wanted else (_UNWANTED, None)


_UNWANTED = Series("", ())


def _line_end(body: bytes, start: int) -> int:
    end = body.find(b"\n", start)
    return end if end >= 0 else len(body)


def _labels(text: str, position: int, limit: int) -> tuple[tuple[tuple[str, str], ...], int] | None:
    """The label pairs that begin at ``position`` and where they end; None if malformed or more than ``limit``."""
    if not text.startswith("{", position):
        return (), position
    position += 1
    pairs: list[tuple[str, str]] = []
    while not text.startswith("}", position):
        match = _LABEL.match(text, position)
        if match is None or len(pairs) == limit:
            return None
        value = match[2]
        if "\\" in value:
            value = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[0]), value)
        pairs.append((match[1], value))
        position = match.end()
    return tuple(pairs), position + 1
