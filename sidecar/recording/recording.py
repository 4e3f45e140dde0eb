"""Reads recorded traffic.

A recording is a directory with ``scrapes.jsonl`` (one poll of vLLM's ``/metrics`` per line: ``start``, ``end``,
``text``) and ``requests.jsonl`` (one request per line); either may be compressed (``.gz``). Times are Unix seconds.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.engine.exposition import PageReader
from sidecar.engine.lines import PageLimits
from sidecar.engine.names import wanted
from sidecar.engine.snapshot import PageSnapshot, SnapshotReader
from sidecar.errors import RecordingError, ScrapeError
from sidecar.requests.record import Outcome, RequestAcceptance, RequestRecord

_CHAT: Final = "/chat/completions"


@dataclass(frozen=True, slots=True)
class Scrape:
    """One poll; ``snapshot`` is None if the page was unusable, as after a failed scrape."""

    at: float
    snapshot: PageSnapshot | None


def read_scrapes(directory: Path) -> Iterator[Scrape]:
    """The polls of a recording, in order.

    Raises:
        RecordingError: the file is missing or a line is invalid.
    """
    pages = PageReader(wanted(), PageLimits())
    snapshots = SnapshotReader()
    for place, line in _lines(directory, "scrapes.jsonl"):
        try:
            at = (float(line["start"]) + float(line["end"])) / 2
            body = str(line["text"]).encode()
        except (KeyError, TypeError, ValueError) as error:
            raise RecordingError(f"{place}: not a poll: {error!r}") from error
        try:
            yield Scrape(at, snapshots.read(pages.read(body)))
        except ScrapeError:
            yield Scrape(at, None)


def read_requests(directory: Path) -> Iterator[RequestRecord]:
    """The requests of a recording, as a live source would have reported them.

    Raises:
        RecordingError: the file is missing or a line is invalid.
    """
    for place, line in _lines(directory, "requests.jsonl"):
        try:
            yield _record(line)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RecordingError(f"{place}: not a request: {error!r}") from error


def _lines(directory: Path, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    path = directory / name
    if not path.exists():
        path = directory / f"{name}.gz"
    if not path.exists():
        raise RecordingError(
            f"{directory}: no recording ({name} is missing); give the directory that `record --out` wrote"
        )
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for number, text in enumerate(file, 1):
                line = json.loads(text)
                if not isinstance(line, dict):
                    raise RecordingError(f"{path}, line {number}: not a JSON object")
                yield f"{path}, line {number}", line
    except (OSError, EOFError, ValueError) as error:  # what gzip and json raise on damaged files too
        raise RecordingError(f"{path}: {error}") from error


def _record(line: Mapping[str, Any]) -> RequestRecord:
    path, start, end = str(line["path"]), float(line["start"]), float(line["end"])
    chunks = [float(offset) for offset in line.get("chunks") or ()]
    if path.endswith(_CHAT):
        chunks = chunks[1:]  # the role has its own event, before any token
    first_token = chunks[0] if chunks else line.get("first_token")  # not every source reports single events
    temperature = line.get("temperature")
    usage = line.get("usage") or {}
    return RequestRecord(
        id=str(line["id"]),
        path=path,
        model=line.get("model"),
        temperature=None if temperature is None else float(temperature),
        choices=int(line.get("choices", 1)),
        stream=bool(line["stream"]),
        start=start,
        first_token=None if first_token is None else start + float(first_token),
        end=end,
        outcome=Outcome(line.get("outcome", Outcome.COMPLETED)),
        max_tokens=line.get("max_tokens"),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        stream_events=int(line.get("stream_events", len(chunks))),
        acceptance=_acceptance(line.get("speculative_decoding")),
        event_offsets=tuple(chunks),
    )


def _acceptance(numbers: Mapping[str, Any] | None) -> RequestAcceptance | None:
    if numbers is None:
        return None
    return RequestAcceptance(
        drafts=int(numbers["num_spec_steps"]),
        draft_tokens=int(numbers["num_draft_tokens"]),
        accepted_tokens=int(numbers["num_accepted_draft_tokens"]),
        histogram=tuple(int(steps) for steps in numbers.get("acceptance_histogram") or ()),
    )
