"""Recordings: one directory with all inputs of the sidecar, and their replay through the same code."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import merge
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import structlog
from pydantic import Field, TypeAdapter

from sidecar.analysis.report import Report
from sidecar.analysis.state import State
from sidecar.engine.exposition import PageReader
from sidecar.engine.names import wanted
from sidecar.engine.snapshot import PageSnapshot, SnapshotReader
from sidecar.errors import RecordingError, ScrapeError
from sidecar.requests.messages import Hello, ReportPart, UnixSeconds
from sidecar.settings import Settings
from sidecar.settings.groups import Limits

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
    """A plug-in's message, received ``at``. No message: the connection ended. Connection 0: only marks a time."""

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


def read_scrapes(directory: Path) -> Iterator[Scrape]:
    """The polls of a recording, in order; if it is truncated, up to that point, which is logged.

    Raises:
        RecordingError: the file is missing or a line is invalid.
    """
    pages = PageReader(wanted(), Limits())
    snapshots = SnapshotReader()
    for start, end, text in _lines(directory, "scrapes.jsonl.gz", "poll", _poll):
        at, duration = (start + end) / 2, end - start
        try:
            yield Scrape(at, duration, snapshots.read(pages.read(text.encode())))
        except ScrapeError as error:
            yield Scrape(at, duration, None, error)


def read_plugin(directory: Path) -> Iterator[PluginLine]:
    """What the plug-ins sent, in order; truncated like ``read_scrapes``.

    Raises:
        RecordingError: the file is missing or a line is invalid.
    """
    read = _plugin_lines().validate_json
    return _lines(directory, "plugin.jsonl.gz", "message of a plug-in", lambda text: read(text, strict=True))


@cache
def _plugin_lines() -> TypeAdapter[PluginLine]:
    return TypeAdapter(PluginLine)


def _lines(directory: Path, name: str, kind: str, read: Callable[[str], _Line]) -> Iterator[_Line]:
    path = directory / name
    if not path.exists():
        advice = "give the directory that `record --out` wrote"
        raise RecordingError(f"{directory}: no recording ({name} is missing); {advice}")
    number = 0
    try:
        with gzip.open(path, "rt") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = read(text)
                except (KeyError, TypeError, ValueError) as error:
                    raise RecordingError(f"{path}, line {number}: not a {kind}: {type(error).__name__}") from error
                yield line
    except EOFError:  # such as when it was copied while it grew
        log = structlog.get_logger("sidecar")
        log.warning("the recording is truncated; using the part before that", file=str(path), lines=number)
    except (OSError, ValueError) as error:  # what gzip raises on damaged files
        raise RecordingError(f"{path}: {error}") from error


def _poll(text: str) -> tuple[float, float, str]:
    line: Any = json.loads(text)
    return float(line["start"]), float(line["end"]), str(line["text"])


def replay(directory: Path, settings: Settings) -> Report:
    """The report at the recording's last poll, as from a sidecar whose windows span the whole recording.

    Raises:
        RecordingError: the recording cannot be read, or has no poll.
    """
    scrapes = list(read_scrapes(directory))
    if not scrapes:
        raise RecordingError(f"{directory}: the recording has no poll")
    length = scrapes[-1].at - scrapes[0].at
    windows = {name: max(getattr(settings, name), length) for name in ("latency_window", "history")}
    return replay_events(scrapes, read_plugin(directory), settings.model_copy(update=windows))


def replay_events(scrapes: Sequence[Scrape], plugin: Iterable[PluginLine], settings: Settings) -> Report:
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
