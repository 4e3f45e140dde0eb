"""The ``traces`` source: the receiver of vLLM's spans."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sidecar.errors import listening
from sidecar.requests.record import RequestSink
from sidecar.requests.source import Log, Stats
from sidecar.requests.traces import TracesOptions, TracesReceiver
from sidecar.requests.traces.options import DROP_REASONS as REASONS
from sidecar.settings import Settings

DROP_REASONS = frozenset(REASONS)


@asynccontextmanager
async def source(
    settings: Settings,
    sink: RequestSink,
    log: Log,
    *,
    offsets: bool,  # noqa: ARG001 - a span has no events
) -> AsyncIterator[Stats]:
    """Listens for OTLP/HTTP."""
    options = TracesOptions(body_bytes=settings.traces.body_bytes, max_inflight=settings.traces.max_inflight)
    receiver = TracesReceiver(sink, options)
    with listening("SPECDEC_TRACES__LISTEN", settings.traces.listen):
        host, port = await receiver.start(settings.traces.listen.host, settings.traces.listen.port)
    log.info("the traces receiver listens", listen=f"{host}:{port}")
    try:
        yield lambda: None
    finally:
        await receiver.stop()
