"""Reads recorded traffic: what ``record`` writes, and recordings that have one request per line.

A recording is a directory with ``scrapes.jsonl`` (one poll of vLLM's ``/metrics`` per line: ``start``, ``end``,
``text``) and either ``plugin.jsonl`` (``heard.py``) or ``requests.jsonl`` (``recorded_requests.py``); each may be
compressed (``.gz``). Times are Unix seconds.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from sidecar.engine.exposition import PageReader
from sidecar.engine.names import wanted
from sidecar.engine.snapshot import PageSnapshot, SnapshotReader
from sidecar.errors import RecordingError, ScrapeError
from sidecar.recording.heard import Heard, decode
from sidecar.recording.recorded_requests import as_heard, read_request
from sidecar.settings.groups import Limits

_Line = TypeVar("_Line")


@dataclass(frozen=True, slots=True)
class Scrape:
    """One poll, ``duration`` seconds long with ``at`` in the middle: its page or its error."""

    at: float
    duration: float
    snapshot: PageSnapshot | None
    error: ScrapeError | None = None


def read_scrapes(directory: Path) -> Iterator[Scrape]:
    """The polls of a recording, in order; if it is truncated, up to that point, which is logged.

    Raises:
        RecordingError: the file is missing or a line is invalid.
    """
    pages = PageReader(wanted(), Limits())
    snapshots = SnapshotReader()
    for start, end, text in _lines(directory, "scrapes.jsonl", "poll", _poll):
        at, duration = (start + end) / 2, end - start
        try:
            yield Scrape(at, duration, snapshots.read(pages.read(text.encode())))
        except ScrapeError as error:
            yield Scrape(at, duration, None, error)


def read_heard(directory: Path, scrapes: Sequence[Scrape]) -> Iterator[Heard]:
    """What the plug-ins sent, in order; for a recording of requests, what one would have sent since the first poll.

    Raises:
        RecordingError: the file is missing or a line is invalid.
    """
    if has_messages(directory):
        return _lines(directory, "plugin.jsonl", "message of a plug-in", decode)
    requests = list(_lines(directory, "requests.jsonl", "request", read_request))
    first = next(((scrape.at, scrape.snapshot) for scrape in scrapes if scrape.snapshot is not None), None)
    return iter(()) if first is None else as_heard(requests, *first)


def has_messages(directory: Path) -> bool:
    """Whether a plug-in's messages were recorded, rather than requests."""
    return _path(directory, "plugin.jsonl") is not None


def _path(directory: Path, name: str) -> Path | None:
    return next((path for path in (directory / name, directory / f"{name}.gz") if path.exists()), None)


def _lines(directory: Path, name: str, kind: str, read: Callable[[str], _Line]) -> Iterator[_Line]:
    path, number = _path(directory, name), 0
    if path is None:
        raise RecordingError(
            f"{directory}: no recording ({name} is missing); give the directory that `record --out` wrote"
        )
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for number, text in enumerate(file, 1):
                try:
                    line = read(text)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
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
