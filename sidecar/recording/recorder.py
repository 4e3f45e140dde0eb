"""Records what a sidecar sees, for replay: vLLM's metrics pages and the plug-in's messages, which contain no text.

A recording is a directory with ``scrapes.jsonl.gz`` and ``plugin.jsonl.gz``; ``recording.py`` reads it. Each file grows
by whole gzip members, as a rule one per poll, so it stays readable however the process ends.
"""

import gzip
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Final

from sidecar.engine.page_source import PageSource
from sidecar.engine.scrape import ScrapeSink
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.log import Logger
from sidecar.recording.recording import PluginLine
from sidecar.requests.messages import Dropped, Message, PluginSink, Unreadable

_MOST_WAITING: Final = 1024 * 1024  # bytes of messages between two polls
_LEVEL: Final = 6  # gzip's own default takes twice as long, for 4 % less


class Recorder:
    """Records until it is closed, in front of the sinks of the poller and the receiver.

    It never raises into what it observes. Before it would exceed ``max_bytes`` of disk, or if the disk fails, it stops
    writing and the sidecar continues.
    """

    def __init__(self, directory: Path, *, max_bytes: int, log: Logger) -> None:
        """Creates the directory and its files.

        Raises:
            FileExistsError: there already is a recording.
            OSError: they cannot be created.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._max_bytes = max_bytes
        self._log = log
        self._pages, self._plugin = (FileIO(directory / f"{name}.jsonl.gz", "xb") for name in ("scrapes", "plugin"))
        self._waiting = [PluginLine(time.time()).encoded()]  # to be written at the next poll
        self._size = 0  # bytes waiting
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
        """Records a poll, after the messages before it: Unix seconds before and after the call, and the whole page."""
        if self._stopped:
            return
        self._flush()
        line = json.dumps({"start": start, "end": end, "text": body.decode(errors="replace")})
        self.scrapes += self._write(self._pages, [line.encode()])

    def plugin(self, line: PluginLine) -> None:
        """Records one message of a plug-in, without adapter names, which often identify tenants."""
        if self._stopped:
            return
        if line.report is not None:
            finished = tuple(replace(request, adapter=None) for request in line.report.finished)
            line = replace(line, report=replace(line.report, adapter=(), finished=finished))
            self.requests += len(finished)
        encoded = line.encoded()
        self._waiting.append(encoded)
        self._size += len(encoded)
        if self._size > _MOST_WAITING:
            self._flush()

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
            self._waiting, self._size = [], 0

    def _write(self, file: FileIO, lines: Sequence[bytes]) -> bool:
        """Whether the lines were written. A write that fails midway leaves the file as it was."""
        rest = memoryview(gzip.compress(b"\n".join((*lines, b"")), _LEVEL))
        if not self._stopped and self.written + len(rest) > self._max_bytes:
            self._stop("the recording has reached its size limit", max_bytes=self._max_bytes)
        if self._stopped:
            return False
        begin, size = file.tell(), len(rest)
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
