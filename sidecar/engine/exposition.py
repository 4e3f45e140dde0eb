"""Reads the wanted samples from a page in Prometheus's text format, at the cost of a few C calls.

vLLM's page has about 650 lines, a quarter of which matter, and from poll to poll only the numbers
change. So the first page is read line by line (``read_lines``), and its shape is remembered: the
number of lines, and the text before the value in each line that matters. Later pages are split into
lines and compared with that shape. Any difference sends the page to ``read_lines``, which alone
decides what is valid.

Grammar: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4). The
additions of OpenMetrics 1.0 (``# EOF``, exemplars) are accepted, because old vLLM versions serve
them, and vLLM's Rust frontend serves nothing else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO

from sidecar.engine.names import CREATED, PREFIXES, PROCESS_START, split
from sidecar.errors import EmptyPage, NoLogStats, NotAnExposition, PageTooLarge, TruncatedPage
from sidecar.settings.groups import Limits

_TYPE_LINE = re.compile(rb"# TYPE \S+ \w+\n")
# What vLLM's API server itself counts, from the first request on or even before.
_API_SERVER = re.compile(
    rb'(?m)^http_requests_total\{[^\n]*handler="/v1/|^# TYPE http_requests_total '
)
_OPENMETRICS_END = b"# EOF\n"
# Until its engine has reported, the Rust frontend's families have no series. An encoder that leaves
# such families out keeps only that family of the server which has no labels.
_FRONTEND = re.compile(rb"(?m)^# TYPE (vllm:|http_request_duration_highr_seconds histogram)")
_START_TIMES = {PROCESS_START, *(f"{prefix}{CREATED}" for prefix in PREFIXES)}
_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(
    r"[ \t]*(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)[ \t]*="
    r'[ \t]*"(?P<value>(?:[^"\\]|\\.)*)"[ \t]*(?:,|(?=\}))'
)
# Printable ASCII without "_": float() would also accept "1_0" and digits of other scripts.
_VALUE = re.compile(r"[ \t]+(?P<value>[!-^`-~]+)(?:[ \t]+-?[\d.]+)?[ \t]*(?:# \{.*)?$")
_ESCAPE = re.compile(r"\\(?P<character>.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}

_MOST_LINES = 100_000  # per page; vLLM has about 420 per engine
_LINE_BYTES = 16 * 1024
_MOST_REMEMBERED = 4 * 1024 * 1024  # bytes of a page; one of 16 engines has less than 1 MiB
_MOST_LABELS = 64
_LABEL_CHARACTERS = 512  # a label's value: it is kept, and exported with each series of its engine


@dataclass(frozen=True, slots=True)
class Series:
    """One time series: its sample name, prefix included, and its labels in the page's order."""

    name: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted samples of one page: ``values[i]`` belongs to ``series[i]``.

    ``series`` is the same object while the page keeps its shape. ``is_rust``: vLLM's Rust frontend
    serves it, perhaps before its engine has reported anything.
    """

    series: tuple[Series, ...]
    values: Sequence[float]
    malformed: int  # lines of wanted samples that were skipped because they break the grammar
    is_rust: bool = False


@dataclass(frozen=True, slots=True)
class _Memory:
    """Where a page with this number of ``lines`` has its wanted samples.

    ``keys[i]`` is in line ``places[i]``.
    """

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
        self._is_rust = False  # whether the remembered page is

    def read(self, body: bytes) -> Page:
        """The wanted samples of a page.

        Raises:
            PageTooLarge: the page has more bytes, lines or wanted series than the limit.
            EmptyPage: the body is empty.
            NotAnExposition: the body has neither a wanted sample nor a ``# TYPE`` line.
            NoLogStats: the page is an API server's, without any of vLLM's metrics.
            TruncatedPage: the last line does not end with a newline, and is not ``# EOF``.
        """
        if len(body) > self._limits.page_bytes:
            raise PageTooLarge(f"{len(body)} bytes; limit {self._limits.page_bytes}")

        if body.endswith(b"\n# EOF"):  # OpenMetrics requires no newline after it
            body += b"\n"

        values = None
        if self._memory is not None and body.endswith(b"\n"):
            values = _values(body, self._memory)
        if values is None:
            return self._learn(body)

        return Page(self._series, values, 0, self._is_rust and body.endswith(_OPENMETRICS_END))

    def _learn(self, body: bytes) -> Page:
        """Reads the page line by line and remembers its shape. Raises what ``read`` raises."""
        page, places = read_lines(body, self._wanted, self._limits.series)
        if not body.strip():
            raise EmptyPage("vLLM answers, but its page is empty")
        if not page.series and not _TYPE_LINE.search(body):
            raise NotAnExposition(f"the body begins with {body[:16]!r}")
        if not body.endswith(b"\n"):
            raise TruncatedPage(f"{len(body)} bytes, and the last line does not end")

        self._is_rust = _is_rust(body, page)
        if not self._is_rust and not _has_vllm_series(page) and _API_SERVER.search(body):
            raise NoLogStats("an API server answers, but its page has none of vLLM's metrics")

        if self._series != page.series:
            self._series = page.series

        self._memory = _remember(body, page, places)
        return replace(page, series=self._series, is_rust=self._is_rust)


def _is_rust(body: bytes, page: Page) -> bool:
    """Whether vLLM's Rust frontend serves the page.

    It alone sends OpenMetrics although plain text was asked for, and leaves out the start times of
    the process and the counters, which Python's client library has (vLLM, rust/src/metrics).
    """
    has_start_times = any(series.name in _START_TIMES for series in page.series)
    is_openmetrics = body.endswith(_OPENMETRICS_END)
    return is_openmetrics and not has_start_times and _FRONTEND.search(body) is not None


def _has_vllm_series(page: Page) -> bool:
    """Whether a sample is one of vLLM's own."""
    for series in page.series:
        prefix, _ = split(series.name)
        if prefix:
            return True
    return False


def _remember(body: bytes, page: Page, places: tuple[int, ...]) -> _Memory | None:
    """The page's shape; None if a page of that shape could be misread, or is very large.

    Malformed lines, or white space in keys, could cause that.
    """
    if page.malformed or not places or len(body) > _MOST_REMEMBERED:
        return None

    lines = body.split(b"\n")
    keys = b"\n".join([lines[place] for place in places]).split()[::2]
    memory = _Memory(len(lines), places, keys)
    values = _values(body, memory)
    # Compared as text, since NaN differs from NaN.
    agrees = values is not None and list(map(repr, values)) == list(map(repr, page.values))
    return memory if agrees else None


def _values(body: bytes, memory: _Memory) -> list[float] | None:
    """The values on a page; None if anything but a number has changed in the lines that matter."""
    lines = body.split(b"\n", memory.lines)  # no more than remembered: there may be millions
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


def read_lines(
    body: bytes, wanted: frozenset[bytes], most_series: int
) -> tuple[Page, tuple[int, ...]]:
    """Reads a page line by line; returns also the line numbers of the samples, from 0.

    ``wanted`` are the full names of the samples needed (``x_total``, ``x_bucket``); the rest is not
    checked. Lines of wanted samples that are invalid or overlong, or repeat a series, are skipped
    and counted.

    Raises:
        PageTooLarge: more lines or wanted series than the limit.
    """
    samples: dict[Series, float] = {}
    places: list[int] = []
    malformed = 0
    texts: dict[str, str] = {}  # keeps one copy of each text, however many series have it
    for place, ended_line in enumerate(BytesIO(body)):
        if place >= _MOST_LINES:
            raise PageTooLarge(f"more than {_MOST_LINES} lines")

        line = ended_line.removesuffix(b"\n")
        name = _NAME.match(line)
        if name is None or name.group() not in wanted:
            continue

        sample = _sample(line, name.end(), texts)
        if sample is None:
            malformed += 1
            continue

        series, value = sample
        if series in samples:
            malformed += 1
            continue

        samples[series] = value
        places.append(place)
        if len(samples) > most_series:
            raise PageTooLarge(f"more than {most_series} series of the families in use")

    return Page(tuple(samples), list(samples.values()), malformed), tuple(places)


def read_sample(line: bytes) -> tuple[Series, float] | None:
    """The series and value of a line of any name.

    None for a malformed line, a comment or an empty line.
    """
    name = _NAME.match(line)
    return None if name is None else _sample(line, name.end(), {})


def _sample(line: bytes, name_end: int, texts: dict[str, str]) -> tuple[Series, float] | None:
    """The series and value of a line; None for a malformed one.

    A text that is already in ``texts`` is not kept twice.
    """
    if len(line) > _LINE_BYTES:
        return None

    try:
        text = line.decode()
        labels, end = _labels(text, name_end, texts)
        match = _VALUE.match(text, end)
        if match is None:
            return None
        name = text[:name_end]
        return Series(texts.setdefault(name, name), labels), float(match["value"])
    except ValueError:
        return None


def _labels(
    text: str, position: int, texts: dict[str, str]
) -> tuple[tuple[tuple[str, str], ...], int]:
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
        if match is None or len(match["value"]) > _LABEL_CHARACTERS or len(pairs) == _MOST_LABELS:
            raise ValueError

        name = match["name"]
        value = match["value"]
        if "\\" in value:
            value = _ESCAPE.sub(_unescaped, value)
        pairs.append((texts.setdefault(name, name), texts.setdefault(value, value)))
        position = match.end()

    return tuple(pairs), position + 1


def _unescaped(escape: re.Match[str]) -> str:
    """The character that an escape stands for; a pair that is no escape stays as it is."""
    return _ESCAPED.get(escape["character"], escape.group())
