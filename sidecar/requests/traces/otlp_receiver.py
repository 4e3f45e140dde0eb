"""The OTLP/HTTP endpoint: receives exports of spans, delivers RequestRecords."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import hdrs, web
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.http.access import Access
from sidecar.http.guard import GuardedServer, GuardOptions
from sidecar.requests.record import RequestRecord
from sidecar.requests.source import RequestSink
from sidecar.requests.traces.body import BodyReader, gunzipped
from sidecar.requests.traces.options import TracesOptions
from sidecar.requests.traces.otlp import json_spans, protobuf_spans
from sidecar.requests.traces.records import to_record
from sidecar.requests.traces.refusal import ExportRefused, Inconsistent, Overloaded, Unsupported
from sidecar.requests.traces.reply import JSON, PROTOBUF, accepted, failure

PATH: Final = "/v1/traces"
_INFLIGHT_BODIES: Final = 4  # bodies of the largest size that may wait or be decoded
_ENCODINGS: Final = ("", "identity", "gzip")


class OtlpReceiver:
    """Receives ``POST /v1/traces`` on its own port, from ``start`` to ``stop``.

    ``sink`` gets ``finished`` for each request, and ``dropped`` with one of ``DROP_REASONS``: ``inconsistent`` for a
    span, any other for a whole export, which counts as one however many spans it has. ``clock`` gives Unix seconds.
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
        self._turn = asyncio.Lock()  # one export is decoded at a time, to bound the memory for it
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
        """Listens; returns host and port as bound.

        Raises:
            OSError: the address is in use or not ours.
        """
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
            if isinstance(refusal, Overloaded):
                headers["Retry-After"] = str(self._options.retry_after_seconds)
            return failure(media_type, refusal.status, refusal.code, str(refusal), headers)

    async def _take(self, request: web.Request) -> int:
        """Reads, decodes and delivers one export; returns how many of its spans were refused."""
        if request.content_type not in (PROTOBUF, JSON):
            raise Unsupported("the content type must be application/x-protobuf or application/json")
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
        if encoding not in _ENCODINGS:
            raise Unsupported("the content encoding must be gzip or identity")
        body = await self._bodies.read(request)
        room = _INFLIGHT_BODIES * self._options.body_bytes
        if self._inflight >= self._options.max_inflight or self._inflight_bytes + len(body) > room:
            raise Overloaded("too many exports at once")
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
                self._remember(record.id)
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
        for span in self._spans(body, media_type):
            try:
                record = to_record(span, latest_end)
            except Inconsistent:
                refused += 1
            else:
                if record is not None:
                    records.append(record)
        return records, refused

    def _spans(self, body: bytes, media_type: str) -> Iterator[Span]:
        spans = json_spans if media_type == JSON else protobuf_spans
        return spans(body, self._options.max_spans)

    def _remember(self, span_id: str) -> None:
        self._recent[span_id] = None
        if len(self._recent) > self._options.recent_spans:
            del self._recent[next(iter(self._recent))]
