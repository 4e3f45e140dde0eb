"""Recordings: what a sidecar sees, written for later, and replayed through the same code.

A recording is a directory with ``scrapes.jsonl.gz``, vLLM's metrics pages, and ``plugin.jsonl.gz``,
the plug-in's messages, which contain no text. Each file grows by whole gzip members, as a rule one
per poll, so it stays readable however the process ends.
"""

import gzip
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from heapq import merge
from io import FileIO
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeVar

import structlog
from pydantic import Field, TypeAdapter

from sidecar.analysis.report import Report
from sidecar.analysis.state import State
from sidecar.engine.exposition import PageReader
from sidecar.engine.names import wanted
from sidecar.engine.page_source import PageSource
from sidecar.engine.scrape import ScrapeSink
from sidecar.engine.snapshot import PageSnapshot, SnapshotReader
from sidecar.errors import InputError, ScrapeError
from sidecar.log import Logger
from sidecar.requests.keys import OTHER
from sidecar.requests.messages import (
    Dropped,
    Hello,
    Message,
    PluginSink,
    ReportPart,
    UnixSeconds,
    Unreadable,
)
from sidecar.settings import Settings
from sidecar.settings.groups import Limits

_PAGES: Final = "scrapes.jsonl.gz"
_MESSAGES: Final = "plugin.jsonl.gz"
_MOST_WAITING: Final = 1024 * 1024  # bytes of messages between two polls
_MOST_ADAPTERS: Final = 1_000  # whose names are replaced by a number each
_LEVEL: Final = 6  # gzip's own default takes twice as long, for 4 % less

_Line = TypeVar("_Line")


@dataclass(frozen=True, slots=True)
class Scrape:
    """One poll, ``duration`` seconds long with ``at`` in the middle: its page or its error."""

    at: float
    duration: float
    snapshot: PageSnapshot | None
    error: ScrapeError | None = None


@dataclass(frozen=True, slots=True)
class PluginLine:
    """A plug-in's message, received ``at``.

    No message: the connection ended. Connection 0: only marks a time.
    """

    at: UnixSeconds
    connection: Annotated[int, Field(ge=0)] = 0
    hello: Hello | None = None
    report: ReportPart | None = None

    @classmethod
    def of(cls, at: float, connection: int, message: Hello | ReportPart | None) -> Self:
        """The line for a message as a ``PluginSink`` gets it."""
        if isinstance(message, Hello):
            return cls(at, connection, hello=message)
        return cls(at, connection, report=message)

    @property
    def message(self) -> Hello | ReportPart | None:
        """The message for a ``PluginSink``; None if the connection ended."""
        return self.hello or self.report

    def encoded(self) -> bytes:
        """The line, without the line break."""
        return _plugin_lines().dump_json(self, exclude_defaults=True)


@cache
def _plugin_lines() -> TypeAdapter[PluginLine]:
    return TypeAdapter(PluginLine)


def _plugin_line(text: str) -> PluginLine:
    return _plugin_lines().validate_json(text, strict=True)


class Recorder:
    """Records until it is closed, in front of the sinks of the poller and the receiver.

    It never raises into what it observes. Before it would exceed ``max_bytes`` of disk, or if the
    disk fails, it stops writing and the sidecar continues.
    """

    def __init__(self, directory: Path, *, max_bytes: int, log: Logger) -> None:
        """Creates the directory and its files.

        Raises:
            InputError: there already is a recording, or one of its files.
            OSError: they cannot be created.
        """
        directory.mkdir(parents=True, exist_ok=True)
        for path in (directory / _PAGES, directory / _MESSAGES):
            if path.exists():
                raise InputError(f"{path} already exists; choose another directory")

        self._max_bytes = max_bytes
        self._log = log
        self._pages, self._plugin = (FileIO(directory / name, "xb") for name in (_PAGES, _MESSAGES))
        self._waiting = [PluginLine(time.time()).encoded()]  # to be written at the next poll
        self._size = 0  # bytes waiting
        self._adapters: dict[str, str] = {}  # what replaces the name of each
        self._stopped = False
        self.written = 0  # bytes
        self.requests = 0  # finished requests
        self.scrapes = 0

    def close(self) -> None:
        """Writes the waiting messages and closes the files."""
        self._flush()
        self._pages.close()
        self._plugin.close()

    def page(self, start: float, end: float, body: bytes) -> None:
        """Records a poll, after the messages before it.

        ``start`` and ``end`` are Unix seconds before and after the call, ``body`` is the whole
        page.
        """
        if self._stopped:
            return
        self._flush()
        line = json.dumps({"start": start, "end": end, "text": body.decode(errors="replace")})
        self.scrapes += self._write(self._pages, [line.encode()])

    def plugin(self, line: PluginLine) -> None:
        """Records one message of a plug-in.

        The names of adapters often identify tenants; a number in order of appearance replaces each.
        """
        if self._stopped:
            return

        if line.report is not None:
            cells = tuple(
                (replace(key, adapter=self._number(key.adapter)), numbers)
                for key, numbers in line.report.cells
            )
            finished = tuple(
                replace(request, adapter=self._number(request.adapter))
                for request in line.report.finished
            )
            line = replace(line, report=replace(line.report, cells=cells, finished=finished))
            self.requests += len(finished)

        encoded = line.encoded()
        self._waiting.append(encoded)
        self._size += len(encoded)
        if self._size > _MOST_WAITING:
            self._flush()

    def _number(self, adapter: str | None) -> str | None:
        if not adapter:
            return adapter
        if adapter not in self._adapters and len(self._adapters) >= _MOST_ADAPTERS:
            return OTHER
        return self._adapters.setdefault(adapter, f"adapter {len(self._adapters) + 1}")

    def tee_requests(self, sink: PluginSink) -> PluginSink:
        """A sink that records each message and passes it on to ``sink``."""

        def record(connection: int, message: Message) -> None:
            if not isinstance(message, Dropped | Unreadable):
                self.plugin(PluginLine.of(time.time(), connection, message))
            sink(connection, message)

        return record

    def tee_scrapes(self, sink: ScrapeSink, source: PageSource) -> ScrapeSink:
        """A sink that records ``source``'s whole pages and passes each poll on to ``sink``."""
        return _Scrapes(self, sink, source)

    def _flush(self) -> None:
        if self._waiting:
            self._write(self._plugin, self._waiting)
            self._waiting = []
            self._size = 0

    def _write(self, file: FileIO, lines: Sequence[bytes]) -> bool:
        """Whether the lines were written. A write that fails midway leaves the file as it was."""
        rest = memoryview(gzip.compress(b"\n".join((*lines, b"")), _LEVEL))
        if not self._stopped and self.written + len(rest) > self._max_bytes:
            self._stop("the recording has reached its size limit", max_bytes=self._max_bytes)
        if self._stopped:
            return False

        begin = file.tell()
        size = len(rest)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            with suppress(OSError):
                file.truncate(begin)
            self._stop("cannot write the recording", problem=error.strerror)
            return False

        self.written += size
        return True

    def _stop(self, event: str, **fields: object) -> None:
        self._stopped = True
        self._log.warning(f"{event}; recording stopped, the sidecar continues", **fields)


class _Scrapes:
    def __init__(self, recorder: Recorder, sink: ScrapeSink, source: PageSource) -> None:
        self._recorder = recorder
        self._sink = sink
        self._source = source

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        self._recorder.page(at - duration / 2, at + duration / 2, self._source.whole_page)
        self._sink.scraped(at, duration, interval, page)

    def failed(self, at: float, error: ScrapeError) -> None:
        self._sink.failed(at, error)


def read_scrapes(directory: Path) -> Iterator[Scrape]:
    """The polls of a recording, in order; if it is truncated, up to that point, which is logged.

    Raises:
        InputError: the file is missing or a line is invalid.
    """
    pages = PageReader(wanted(), Limits())
    snapshots = SnapshotReader()
    for start, end, text in _lines(directory, _PAGES, "poll", _poll):
        at = (start + end) / 2
        duration = end - start
        try:
            yield Scrape(at, duration, snapshots.read(pages.read(text.encode())))
        except ScrapeError as error:
            yield Scrape(at, duration, None, error)


def read_plugin(directory: Path) -> Iterator[PluginLine]:
    """What the plug-ins sent, in order; truncated like ``read_scrapes``.

    Raises:
        InputError: the file is missing or a line is invalid.
    """
    return _lines(directory, _MESSAGES, "message of a plug-in", _plugin_line)


def _lines(directory: Path, name: str, kind: str, read: Callable[[str], _Line]) -> Iterator[_Line]:
    path = directory / name
    if not path.exists():
        advice = "give the directory that `record --out` wrote"
        raise InputError(f"{directory}: no recording ({name} is missing); {advice}")

    number = 0
    try:
        with gzip.open(path, "rt") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = read(text)
                except (KeyError, TypeError, ValueError) as error:
                    raise InputError(
                        f"{path}, line {number}: not a {kind}: {type(error).__name__}"
                    ) from error
                yield line
    except EOFError:  # such as when it was copied while it grew
        log = structlog.get_logger("sidecar")
        log.warning(
            "the recording is truncated; using the part before that", file=str(path), lines=number
        )
    except (OSError, ValueError) as error:  # what gzip raises on damaged files
        raise InputError(f"{path}: {error}") from error


def _poll(text: str) -> tuple[float, float, str]:
    line: Any = json.loads(text)
    return float(line["start"]), float(line["end"]), str(line["text"])


def replay(directory: Path, settings: Settings) -> Report:
    """The report at the recording's last poll, with windows that span the whole recording.

    Raises:
        InputError: the recording cannot be read, or has no poll.
    """
    scrapes = list(read_scrapes(directory))
    if not scrapes:
        raise InputError(f"{directory}: the recording has no poll")

    length = scrapes[-1].at - scrapes[0].at
    windows = {name: max(getattr(settings, name), length) for name in ("latency_window", "history")}
    return replay_events(scrapes, read_plugin(directory), settings.model_copy(update=windows))


def replay_events(
    scrapes: Sequence[Scrape], plugin: Iterable[PluginLine], settings: Settings
) -> Report:
    """The report at the last poll, over the window of these settings; needs at least one poll."""
    events: Iterator[PluginLine | Scrape] = merge(plugin, scrapes, key=attrgetter("at"))
    first = next(events)
    state = State(settings, first.at)
    for event in chain((first,), events):
        if isinstance(event, PluginLine):
            if event.connection:
                state.plugin.receive(event.connection, event.message)
        elif event.snapshot is not None:
            state.scraped(event.at, event.duration, settings.scrape_interval, event.snapshot)
        elif event.error is not None:
            state.failed(event.at, event.error)

    return state.report(scrapes[-1].at)
