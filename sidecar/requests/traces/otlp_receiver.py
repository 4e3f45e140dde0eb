"""The OTLP/HTTP endpoint: receives exports of spans, delivers RequestRecords."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import hdrs, web
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from sidecar.http.access import Access
from sidecar.http.guard import GuardedServer, GuardOptions
from sidecar.requests.record import RequestRecord
from sidecar.requests.source import RequestSink
from sidecar.requests.traces.body import BodyReader, gunzipped
from sidecar.requests.traces.otlp import json_spans, protobuf_spans
from sidecar.requests.traces.records import to_record
from sidecar.requests.traces.refusal import REFUSALS, ExportRefused, Inconsistent

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
PATH: Final = "/v1/traces"
_INFLIGHT_BODIES: Final = 4  # bodies of the largest size that may wait or be decoded
_ENCODINGS: Final = ("", "identity", "gzip")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesOptions:
    """Times are in seconds; ``settings`` has those options that operators may change."""

    body_bytes: int = 4 * 1024 * 1024  # of one export, compressed and decompressed, else 413
    body_seconds: float = 10.0  # for one export's whole body to arrive, else 408
    max_inflight: int = 16  # exports that have arrived and wait or are being decoded; a further one gets 503
    max_spans: int = 10_000  # in one export, else 413; an OpenTelemetry Collector's batches have 8,192 by default
    max_connections: int = 64  # open at once
    header_seconds: float = 10.0  # for one request's head
    idle_seconds: float = 75.0  # a connection may stay open between exports
    retry_after_seconds: int = 1  # how long a refused sender is asked to wait
    recent_spans: int = 32_768  # remembered to drop repeated spans: about 5 MiB
    ahead_seconds: float = 60.0  # a span that ends further in the future is refused: its clock is not ours


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
        """Listens; see ``GuardedServer.start``."""
        return await self._server.start(host, port)

    async def stop(self) -> None:
        """Gives exports that are being read a moment to finish, then closes. Idempotent."""
        await self._server.stop()

    async def _receive(self, request: web.Request) -> web.Response:
        media_type = request.content_type
        try:
            return _accepted(media_type, await self._take(request))
        except ExportRefused as refusal:
            self._sink.dropped(refusal.reason, 1)
            headers = {}
            if refusal.reason == "overload":
                headers["Retry-After"] = str(self._options.retry_after_seconds)
            return _failure(media_type, *REFUSALS[refusal.reason], str(refusal), headers)

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


def _accepted(media_type: str, refused: int) -> web.Response:
    """200; ``refused`` spans are reported as a partial success."""
    response = ExportTraceServiceResponse()
    if refused:
        response.partial_success.rejected_spans = refused
        response.partial_success.error_message = "spans whose times, counts or ids cannot be true were refused"
    is_json = media_type == JSON
    body = json_format.MessageToJson(response).encode() if is_json else response.SerializeToString()
    return web.Response(body=body, content_type=media_type)


def _failure(media_type: str, status: int, code: int, message: str, headers: Mapping[str, str]) -> web.Response:
    """An error: a google.rpc.Status with gRPC's ``code`` and ``message``, ASCII of less than 128 bytes."""
    if media_type == PROTOBUF:
        text = message.encode("ascii")
        body = bytes((0x08, code, 0x12, len(text))) + text  # fields 1 (a varint) and 2 (a string) of google.rpc.Status
    else:
        media_type, body = JSON, json.dumps({"code": code, "message": message}).encode()
    return web.Response(status=status, body=body, content_type=media_type, headers=headers)
