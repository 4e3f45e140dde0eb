"""Reads a page line by line: this defines which lines are valid, and is the slow path of ``PageReader``.

Grammar: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4). The additions of OpenMetrics
1.0 (``# EOF``, exemplars) are accepted, because old vLLM versions serve them.
"""

import re
from dataclasses import dataclass

from sidecar.errors import PageTooLarge

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|(?=\}))')
# Printable ASCII without "_": float() would also accept "1_0" and digits of other scripts.
_VALUE = re.compile(r"[ \t]+([!-^`-~]+)(?:[ \t]+-?[\d.]+)?[ \t]*(?:# \{.*)?$")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}

_MOST_LINES = 100_000  # per page; vLLM has about 420 per engine
_LINE_BYTES = 16 * 1024
_MOST_LABELS = 64
_LABEL_CHARACTERS = 512  # a label's value: it is kept, and exported with each series of its engine


@dataclass(frozen=True, slots=True)
class Series:
    """One time series: its sample name, prefix included, and its labels in the page's order."""

    name: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """The wanted samples of a page and their line numbers, from 0; the rest of the page is not checked.

    ``malformed`` counts the wanted samples' lines that were skipped: invalid or overlong ones, and repeated series.
    """

    samples: dict[Series, float]
    places: tuple[int, ...]
    malformed: int


def read_lines(body: bytes, wanted: frozenset[bytes], most_series: int) -> Lines:
    """Reads a page; ``wanted`` are the full names of the samples needed (``x_total``, ``x_bucket``).

    Raises:
        PageTooLarge: more lines or wanted series than the limit.
    """
    lines = body.split(b"\n", _MOST_LINES)
    if len(lines) > _MOST_LINES:
        raise PageTooLarge(f"more than {_MOST_LINES} lines")
    samples: dict[Series, float] = {}
    places: list[int] = []
    malformed = 0
    for place, line in enumerate(lines):
        name = _NAME.match(line)
        if name is None or name[0] not in wanted:
            continue
        sample = _sample(line, name.end())
        if sample is None or sample[0] in samples:
            malformed += 1
            continue
        samples[sample[0]] = sample[1]
        places.append(place)
        if len(samples) > most_series:
            raise PageTooLarge(f"more than {most_series} series of the families in use")
    return Lines(samples, tuple(places), malformed)


def read_sample(line: bytes) -> tuple[Series, float] | None:
    """The series and value of a line of any name; None for a malformed one, a comment or an empty line."""
    name = _NAME.match(line)
    return None if name is None else _sample(line, name.end())


def _sample(line: bytes, name_end: int) -> tuple[Series, float] | None:
    """The series and value of a line; None for a malformed one."""
    if len(line) > _LINE_BYTES:
        return None
    try:
        text = line.decode()
        labels, end = _labels(text, name_end)
        match = _VALUE.match(text, end)
        return None if match is None else (Series(text[:name_end], labels), float(match[1]))
    except ValueError:
        return None


def _labels(text: str, position: int) -> tuple[tuple[tuple[str, str], ...], int]:
    """The label pairs that begin at ``position``, and the position where they end.

    Raises:
        ValueError: they are malformed, too long, or too many.
    """
    if not text.startswith("{", position):
        return (), position
    position += 1
    pairs: list[tuple[str, str]] = []
    while not text.startswith("}", position):
        match = _LABEL.match(text, position)
        if match is None or len(match[2]) > _LABEL_CHARACTERS or len(pairs) == _MOST_LABELS:
            raise ValueError
        value = match[2]
        if "\\" in value:
            value = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[0]), value)
        pairs.append((match[1], value))
        position = match.end()
    return tuple(pairs), position + 1
