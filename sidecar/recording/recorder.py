"""Records what a sidecar sees, for replay: vLLM's metrics pages and one line per request, never any text.

A recording is a directory with ``scrapes.jsonl.gz`` and ``requests.jsonl.gz``; ``recording.py`` reads it. Each file
grows by whole gzip members, so what was written stays readable however the process ends.
"""

import asyncio
import contextlib
import gzip
import math
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from sidecar.engine.page_source import PageSource
from sidecar.engine.scrape import ScrapeSink
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.log import Log
from sidecar.requests.observe.endpoint import CHAT
from sidecar.requests.record import RequestAcceptance, RequestRecord, RequestStart
from sidecar.requests.source import RequestSink

SCRAPES: Final = "scrapes.jsonl.gz"
REQUESTS: Final = "requests.jsonl.gz"

_PENDING_PAGES: Final = 64 * 1024 * 1024  # bytes waiting to be written
_PENDING_NUMBERS: Final = 1_000_000  # fields and offsets of requests waiting to be written
_FIELDS: Final = 20  # of one request, without its offsets
_DIGITS: Final = 6  # microseconds


class Recorder:
    """Records until the end of an ``async with`` block, between the sources and their sinks.

    It never raises into what it observes. Once ``max_bytes`` of disk are used, or the disk fails, it stops writing and
    the sidecar continues. Compression and writing happen in another thread.
    """

    def __init__(self, directory: Path, *, max_bytes: int, log: Log, every: float = 1.0) -> None:
        """``every`` is the time between two writes, in seconds."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._log = log
        self._every = every
        self._pages = _Lines(_page_fields, _PENDING_PAGES)
        self._records = _Lines(request_fields, _PENDING_NUMBERS)
        self._files: dict[_Lines, FileIO] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self.written = 0  # bytes

    @property
    def requests(self) -> int:
        """Requests recorded so far."""
        return self._records.taken

    @property
    def scrapes(self) -> int:
        """Pages recorded so far."""
        return self._pages.taken

    @property
    def dropped(self) -> int:
        """Pages and requests dropped because the disk was too slow."""
        return self._pages.dropped + self._records.dropped

    async def __aenter__(self) -> Self:
        """Creates the directory and its files.

        Raises:
            FileExistsError: there is a recording already.
            OSError: cannot create them.
        """
        await asyncio.to_thread(self._open)
        self._task = asyncio.create_task(self._write_for_ever(), name="recorder")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._write()
        for file in self._files.values():
            file.close()

    def page(self, start: float, end: float, body: bytes) -> None:
        """Records one poll: Unix seconds before and after the HTTP call, and the whole page."""
        if not self._stopped:
            self._pages.add((start, end, body), len(body))

    def request(self, record: RequestRecord) -> None:
        """Records one finished request."""
        if not self._stopped:
            self._records.add(record, _FIELDS + len(record.event_offsets))

    def tee_requests(self, sink: RequestSink) -> RequestSink:
        """A sink that records and passes on to ``sink``."""
        return _Requests(self, sink)

    def tee_scrapes(self, sink: ScrapeSink, source: PageSource) -> ScrapeSink:
        """A sink that records ``source``'s whole pages and passes on to ``sink``."""
        return _Scrapes(self, sink, source)

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        for lines, name in ((self._pages, SCRAPES), (self._records, REQUESTS)):
            self._files[lines] = (self._directory / name).open("xb", buffering=0)

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            # Shielded: a write that has begun ends before the files are closed.
            write = asyncio.ensure_future(self._write())
            try:
                await asyncio.shield(write)
            except asyncio.CancelledError:
                await write
                raise

    async def _write(self) -> None:
        for lines, file in self._files.items():
            pending = lines.take()
            if not pending or self._stopped:
                continue
            try:
                fits = await asyncio.to_thread(self._append, lines, file, pending)
            except OSError as error:
                self._stop("cannot write the recording", problem=error.strerror)
            else:
                if not fits:
                    self._stop("the recording has reached its size limit", max_bytes=self._max_bytes)

    def _append(self, lines: "_Lines", file: FileIO, pending: list[Any]) -> bool:
        """Whether it was written; a write that fails midway leaves the file as it was."""
        member = gzip.compress(b"".join(msgspec.json.encode(lines.fields(item)) + b"\n" for item in pending))
        if self.written + len(member) > self._max_bytes:
            return False
        begin, rest = file.tell(), memoryview(member)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(begin)
            raise
        self.written += len(member)
        return True

    def _stop(self, event: str, **fields: object) -> None:
        self._stopped = True
        self._log.warning(f"{event}; recording stops, the sidecar continues", **fields)


class _Lines:
    """Items waiting to be written to one file; ``fields`` makes one a line's JSON object, in another thread."""

    def __init__(self, fields: Callable[[Any], dict[str, Any]], most: int) -> None:
        self.fields = fields
        self.taken = 0
        self.dropped = 0
        self._most = most
        self._weight = 0
        self._pending: list[Any] = []

    def add(self, item: object, weight: int) -> None:
        if self._weight + weight > self._most:
            self.dropped += 1
            return
        self._weight += weight
        self._pending.append(item)
        self.taken += 1

    def take(self) -> list[Any]:
        pending, self._pending, self._weight = self._pending, [], 0
        return pending


class _Requests:
    def __init__(self, recorder: Recorder, sink: RequestSink) -> None:
        self._recorder = recorder
        self._sink = sink

    def started(self, request: RequestStart) -> None:
        self._sink.started(request)

    def finished(self, record: RequestRecord) -> None:
        self._recorder.request(record)
        self._sink.finished(record)

    def dropped(self, reason: str, count: int) -> None:
        self._sink.dropped(reason, count)


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


def _page_fields(page: tuple[float, float, bytes]) -> dict[str, Any]:
    start, end, body = page
    return {"start": start, "end": end, "text": body.decode(errors="replace")}


def request_fields(record: RequestRecord) -> dict[str, Any]:
    """A record as plain JSON values.

    ``chunks`` has the times of the events with tokens, without the usage event. For chat there is one more before them,
    since vLLM sends the role first; its time is unknown and assumed to be the first token's. ``stream_events`` and
    ``first_token`` (seconds from ``start``) serve sources that keep no times. A temperature that could not be read is
    "nan".
    """
    chunks = [round(offset, _DIGITS) for offset in record.event_offsets[: record.stream_events]]
    unknown = record.temperature is not None and math.isnan(record.temperature)
    usage = {"prompt_tokens": record.prompt_tokens, "completion_tokens": record.completion_tokens}
    return {
        "id": record.id,
        "path": record.path,
        "model": record.model,
        "temperature": "nan" if unknown else record.temperature,
        "choices": record.choices,
        "stream": record.stream,
        "max_tokens": record.max_tokens,
        "start": record.start,
        "end": record.end,
        "outcome": record.outcome,
        "chunks": [*chunks[:1], *chunks] if record.path == CHAT else chunks,
        "stream_events": record.stream_events,
        "first_token": None if record.first_token is None else round(record.first_token - record.start, _DIGITS),
        "usage": None if set(usage.values()) == {None} else usage,
        "speculative_decoding": None if record.acceptance is None else _speculation(record.acceptance),
    }


def _speculation(acceptance: RequestAcceptance) -> dict[str, Any]:
    """The numbers under the names that vLLM uses."""
    return {
        "num_spec_steps": acceptance.drafts,
        "num_draft_tokens": acceptance.draft_tokens,
        "num_accepted_draft_tokens": acceptance.accepted_tokens,
        "acceptance_histogram": acceptance.histogram or None,
    }
