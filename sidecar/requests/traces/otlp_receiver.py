"""The OTLP/HTTP endpoint: takes exports of spans, delivers RequestRecords."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from aiohttp import hdrs, web

from sidecar.http.access import Access
from sidecar.http.guard import GuardedServer, GuardOptions
from sidecar.requests.record import RequestRecord
from sidecar.requests.source import RequestSink
from sidecar.requests.traces.body import BodyReader, gunzipped
from sidecar.requests.traces.options import TracesOptions
from sidecar.requests.traces.otlp import json_spans, protobuf_spans
from sidecar.requests.traces.records import to_record
from sidecar.requests.traces.refusal import REFUSALS, ExportRefused, Inconsistent
from sidecar.requests.traces.reply import JSON, PROTOBUF, accepted, failure

PATH: Final = "/v1/traces"
_INFLIGHT_BODIES: Final = 4  # of the largest size, which wait or are decoded
_ENCODINGS: Final = ("", "identity", "gzip")


class OtlpReceiver:
    """Receives ``POST /v1/traces`` on its own port, from ``start`` to ``stop``.

    ``sink`` gets ``finished`` for each request, and ``dropped`` with one of ``DROP_REASONS``: ``inconsistent`` for a
    span, any other for an export, whose spans are not counted: 1. ``clock`` gives Unix seconds.
    """

    def __init__(
        self,
        sink: RequestSink,
        options: TracesOptions | None = None,
        access: Access | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink
        self._options = options or TracesOptions()
        self._clock = clock
        self._recent: dict[str, None] = {}  # ids of spans, oldest first: senders send again what they believe lost
        self._turn = asyncio.Lock()  # one export is decoded at a time, which bounds the memory that takes
        self._bodies = BodyReader(self._options.body_bytes, self._options.body_seconds)
        self._inflight = 0
        self._inflight_bytes = 0
        app = web.Application()
        app.router.add_post(PATH, self._receive)
        self._server = GuardedServer(
            app,
            GuardOptions(
                header_seconds=self._options.header_seconds,
                idle_seconds=self._options.idle_seconds,
                max_connections=self._options.max_connections,
            ),
            access,
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens; see ``GuardedServer.start``."""
        return await self._server.start(host, port)

    async def stop(self) -> None:
        """Gives exports that are being read a moment to finish, then closes. Idempotent."""
        await self._server.stop()

    async def _receive(self, request: web.Request) -> web.Response:
        media_type = request.content_type
        try:
            return accepted(media_type, await self._take(request))
        except ExportRefused as refusal:
            self._sink.dropped(refusal.reason, 1)
            headers = {}
            if refusal.reason == "overload":
                headers["Retry-After"] = str(self._options.retry_after_seconds)
            return failure(media_type, *REFUSALS[refusal.reason], str(refusal), headers)

    async def _take(self, request: web.Request) -> int:
        """Reads, decodes and delivers one export; returns how many of its spans were refused."""
        if request.content_type not in (PROTOBUF, JSON):
            raise ExportRefused("unsupported", "the content type must be application/x-protobuf or application/json")
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
        if encoding not in _ENCODINGS:
            raise ExportRefused("unsupported", "the content encoding must be gzip or identity")
        body = await self._bodies.read(request)
        room = _INFLIGHT_BODIES * self._options.body_bytes
        if self._inflight >= self._options.max_inflight or self._inflight_bytes + len(body) > room:
            raise ExportRefused("overload", "too many exports at once")
        self._inflight += 1
        self._inflight_bytes += len(body)
        try:
            async with self._turn:
                # In a thread: a large export takes a second.
                records, refused = await asyncio.to_thread(self._decode, body, request.content_type, encoding)
        finally:
            self._inflight -= 1
            self._inflight_bytes -= len(body)
        for record in records:
            if record.id not in self._recent:
                self._recent[record.id] = None
                if len(self._recent) > self._options.recent_spans:
                    del self._recent[next(iter(self._recent))]
                self._sink.finished(record)
        if refused:
            self._sink.dropped(Inconsistent.reason, refused)
        return refused

    def _decode(self, body: bytes, media_type: str, encoding: str) -> tuple[list[RequestRecord], int]:
        """The requests of an export, and how many of its spans were refused."""
        if encoding == "gzip":
            body = gunzipped(body, self._options.body_bytes)
        latest_end = self._clock() + self._options.ahead_seconds
        records, refused = [], 0
        spans = json_spans if media_type == JSON else protobuf_spans
        for span in spans(body, self._options.max_spans):
            try:
                record = to_record(span, latest_end)
            except Inconsistent:
                refused += 1
            else:
                if record is not None:
                    records.append(record)
        return records, refused
