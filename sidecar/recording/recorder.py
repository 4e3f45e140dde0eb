"""Records what a sidecar sees, for replay: vLLM's metrics pages and what the plug-in sends, which holds no text.

A recording is a directory with ``scrapes.jsonl.gz`` and ``plugin.jsonl.gz``; ``recording.py`` reads it. Each file grows
by whole gzip members, so what was written stays readable however the process ends.
"""

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from sidecar.engine.page_source import PageSource
from sidecar.engine.scrape import ScrapeSink
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.log import Log
from sidecar.recording.heard import Heard, encode
from sidecar.requests.messages import FinishedRequest, Hello, Message, PluginSink, Tick

_PENDING: Final = 64 * 1024 * 1024  # bytes waiting to be written, about
_ROW: Final = 1024  # bytes of a message, and of a row of its tables, about


class Recorder:
    """Records until the end of an ``async with`` block, between those who fetch and receive and their sinks.

    It never raises into what it observes. Once ``max_bytes`` of disk are used, or the disk fails, it stops writing and
    the sidecar continues. Compression and writing happen in another thread.
    """

    def __init__(self, directory: Path, *, max_bytes: int, log: Log, every: float = 1.0) -> None:
        """Creates the directory and its files. ``every`` is the time between two writes, in seconds.

        Raises:
            FileExistsError: there is a recording already.
            OSError: cannot create them.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._max_bytes = max_bytes
        self._log = log
        self._every = every
        self._pages = _File(directory / "scrapes.jsonl.gz", _page_line)
        self._heard = _File(directory / "plugin.jsonl.gz", encode)
        self._waiting = 0  # bytes, about
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._stopped = False
        self.written = 0  # bytes
        self.requests = 0  # finished ones
        self.scrapes = 0
        self.dropped = 0  # pages and messages, because the disk was too slow

    async def __aenter__(self) -> Self:
        self.heard(Heard(time.time()))
        self._task = asyncio.create_task(self._write_until_the_end(), name="recorder")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending.set()
        if self._task is not None:
            await self._task
        for file in (self._pages, self._heard):
            file.close()

    def page(self, start: float, end: float, body: bytes) -> None:
        """Records one poll: Unix seconds before and after the HTTP call, and the whole page."""
        self.scrapes += self._add(self._pages, (start, end, body), len(body))

    def heard(self, heard: Heard) -> None:
        """Records one message of a plug-in, without the names of adapters, which are often those of tenants."""
        tick, request, rows = heard.tick, heard.request, 1
        if tick is not None:
            rows += len(tick.temperature) + len(tick.prompt) + len(tick.steps)
            heard = replace(heard, tick=replace(tick, adapter=()))
        if request is not None:
            heard = replace(heard, request=replace(request, adapter=None))
        taken = self._add(self._heard, heard, rows * _ROW)
        self.requests += taken and request is not None

    def tee_requests(self, sink: PluginSink) -> PluginSink:
        """A sink that records and passes on to ``sink``."""

        def heard(connection: int, message: Message) -> None:
            now = time.time()
            match message:
                case Hello():
                    self.heard(Heard(now, connection, hello=message))
                case Tick():
                    self.heard(Heard(now, connection, tick=message))
                case FinishedRequest():
                    self.heard(Heard(now, connection, request=message))
                case None:
                    self.heard(Heard(now, connection))
            sink(connection, message)

        return heard

    def tee_scrapes(self, sink: ScrapeSink, source: PageSource) -> ScrapeSink:
        """A sink that records ``source``'s whole pages and passes on to ``sink``."""
        return _Scrapes(self, sink, source)

    def _add(self, file: "_File", item: object, size: int) -> bool:
        """Whether it will be written, if the disk has room for it."""
        if self._stopped:
            return False
        if self._waiting + size > _PENDING:
            self.dropped += 1
            return False
        self._waiting += size
        file.waiting.append(item)
        return True

    async def _write_until_the_end(self) -> None:
        ended = False
        while not ended:
            with contextlib.suppress(TimeoutError):
                ended = await asyncio.wait_for(self._ending.wait(), self._every)
            await self._write()

    async def _write(self) -> None:
        self._waiting = 0
        batches = [(file, file.take()) for file in (self._pages, self._heard)]
        for file, items in batches:
            if not items or self._stopped:
                continue
            try:
                written = await asyncio.to_thread(file.append, items, self._max_bytes - self.written)
            except OSError as error:
                self._stop("cannot write the recording", problem=error.strerror)
            else:
                self.written += written
                if not written:
                    self._stop("the recording has reached its size limit", max_bytes=self._max_bytes)

    def _stop(self, event: str, **fields: object) -> None:
        self._stopped = True
        self._log.warning(f"{event}; recording stops, the sidecar continues", **fields)


class _File:
    """One file, and what waits to be written to it; ``encode`` makes an item a line, in another thread."""

    def __init__(self, path: Path, encode: Callable[[Any], bytes]) -> None:
        self.waiting: list[Any] = []
        self._encode = encode
        self._file = path.open("xb", buffering=0)

    def close(self) -> None:
        self._file.close()

    def take(self) -> list[Any]:
        taken, self.waiting = self.waiting, []
        return taken

    def append(self, items: list[Any], room: int) -> int:
        """Bytes written; 0 if there is no room for them. A write that fails midway leaves the file as it was."""
        rest = memoryview(gzip.compress(b"".join(self._encode(item) + b"\n" for item in items)))
        size = len(rest)
        if size > room:
            return 0
        begin = self._file.tell()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(begin)
            raise
        return size


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


def _page_line(page: tuple[float, float, bytes]) -> bytes:
    start, end, body = page
    return json.dumps({"start": start, "end": end, "text": body.decode(errors="replace")}).encode()
