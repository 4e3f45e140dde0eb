"""The OTLP/HTTP endpoint itself: takes exports of spans, delivers RequestRecords."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from sidecar.http.guard import GuardedServer, GuardOptions, GuardStats
from sidecar.requests.record import RequestSink
from sidecar.requests.traces import otlp_json, protobuf
from sidecar.requests.traces.body import check_encoding, decompressed, read_body
from sidecar.requests.traces.options import TracesOptions
from sidecar.requests.traces.recent import RecentSpans
from sidecar.requests.traces.records import to_record
from sidecar.requests.traces.refusal import ExportRefused, Inconsistent, Overloaded, TooLarge, Unsupported
from sidecar.requests.traces.reply import JSON, PROTOBUF, accepted, failure
from sidecar.requests.traces.span import Passed, Span

PATH: Final = "/v1/traces"
_SLICE: Final = 0.005  # seconds of decoding before others get their turn
_NOT_FOUND, _UNIMPLEMENTED = 5, 12  # gRPC's codes


@dataclass(frozen=True, slots=True)
class TracesStats:
    """A snapshot of what came; all only grow. What is lost or refused goes to the sink's ``dropped`` instead."""

    exports: int  # taken
    records: int  # delivered
    other_spans: int  # of other services or kinds: no loss, a Collector sends what it is told to
    duplicates: int  # sent again by a sender that believed them lost


class TracesReceiver:
    """Receives ``POST /v1/traces`` on a port of its own, from ``start`` to ``stop``.

    ``sink`` gets ``finished`` for each request, and ``dropped`` with ``inconsistent`` (a span), or ``malformed``,
    ``unsupported``, ``too_large``, ``timeout`` or ``overload`` (an export, whose spans are not counted: 1).
    ``is_full`` says that the sink can't take more at present: senders then get 503. ``clock`` gives Unix seconds.
    """

    def __init__(
        self,
        sink: RequestSink,
        options: TracesOptions | None = None,
        *,
        is_full: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink
        self._options = options or TracesOptions()
        self._is_full = is_full
        self._clock = clock
        self._recent = RecentSpans(self._options.recent_spans)
        self._turn = asyncio.Lock()  # one export is decoded at a time, which bounds the memory that takes
        self._inflight = 0
        self._exports = self._records = self._other_spans = self._duplicates = 0
        app = web.Application(middlewares=[_statuses])
        app.router.add_post(PATH, self._receive)
        self._server = GuardedServer(
            app,
            GuardOptions(
                header_seconds=self._options.header_seconds,
                idle_seconds=self._options.idle_seconds,
                max_connections=self._options.max_connections,
            ),
        )

    @property
    def stats(self) -> TracesStats:
        """What came so far."""
        return TracesStats(self._exports, self._records, self._other_spans, self._duplicates)

    @property
    def connections(self) -> GuardStats:
        """What the connections did so far."""
        return self._server.stats

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens; returns host and port as bound. Raises OSError where it can't."""
        return await self._server.start(host, port)

    async def stop(self) -> None:
        """Lets exports in work end for a moment, then closes. Idempotent."""
        await self._server.stop()

    async def _receive(self, request: web.Request) -> web.Response:
        try:
            return accepted(request.content_type, await self._take(request))
        except ExportRefused as refusal:
            self._sink.dropped(refusal.reason, 1)
            headers: dict[str, str] = {}
            if isinstance(refusal, Overloaded):
                headers[hdrs.RETRY_AFTER] = str(self._options.retry_after_seconds)
            return failure(_answer_type(request), refusal.status, refusal.code, str(refusal), headers)

    async def _take(self, request: web.Request) -> int:
        """Reads, decodes and delivers one export; how many of its spans were refused."""
        if request.content_type not in (PROTOBUF, JSON):
            raise Unsupported("the content type must be application/x-protobuf or application/json")
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
        check_encoding(encoding)
        self._check_sink()
        if self._inflight >= self._options.max_inflight:
            raise Overloaded("too many exports in work")
        self._inflight += 1
        try:
            body = await read_body(request, self._options.body_bytes, self._options.body_seconds)
            async with self._turn:
                body = await decompressed(body, encoding, self._options.body_bytes)
                spans, others = await self._decode(body, request.content_type)
                self._check_sink()
                return await self._deliver(spans, others)
        finally:
            self._inflight -= 1

    def _check_sink(self) -> None:
        if self._is_full():
            raise Overloaded("no room for requests at present")

    async def _decode(self, body: bytes, media_type: str) -> tuple[list[Span], int]:
        """The spans of vLLM and the number of the others. Nothing is delivered before all is known to be sound."""
        limit = self._options.max_spans
        items = protobuf.spans(body, limit) if media_type == PROTOBUF else otlp_json.spans(body)
        spans: list[Span] = []
        others = 0
        slices = _Slices()
        for span in items:
            await slices.pause_if_over()
            if isinstance(span, Span):
                spans.append(span)
            else:
                others += span is Passed.SPAN
            if len(spans) + others > limit:
                raise TooLarge("too many spans in one export: lower the sender's batch size")
        return spans, others

    async def _deliver(self, spans: list[Span], others: int) -> int:
        self._exports += 1
        self._other_spans += others
        latest_end = self._clock() + self._options.ahead_seconds
        refused = 0
        slices = _Slices()
        for span in spans:
            await slices.pause_if_over()
            refused += not self._deliver_one(span, latest_end)
        if refused:
            self._sink.dropped(Inconsistent.reason, refused)
        return refused

    def _deliver_one(self, span: Span, latest_end: float) -> bool:
        """Whether the span was sound."""
        try:
            record = to_record(span, latest_end)
        except Inconsistent:
            return False
        if record is None:
            self._other_spans += 1
        elif self._recent.is_new(record.id):
            self._records += 1
            self._sink.finished(record)
        else:
            self._duplicates += 1
        return True


class _Slices:
    """Gives everyone else a turn whenever this one has lasted long enough."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + _SLICE

    async def pause_if_over(self) -> None:
        if time.perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = time.perf_counter() + _SLICE


@web.middleware
async def _statuses(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives aiohttp's own refusals the shape that OTLP asks for."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed: dict[str, str] = {hdrs.ALLOW: ", ".join(sorted(error.allowed_methods))}
        return failure(_answer_type(request), error.status, _UNIMPLEMENTED, "only POST is served here", allowed)
    except web.HTTPNotFound as error:
        return failure(_answer_type(request), error.status, _NOT_FOUND, "only /v1/traces is served here")


def _answer_type(request: web.Request) -> str:
    return PROTOBUF if request.content_type == PROTOBUF else JSON
