"""The ``traces`` source: the receiver of vLLM's own OpenTelemetry spans."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sidecar.errors import listening
from sidecar.requests.record import RequestSink
from sidecar.requests.source import Log, Stats
from sidecar.requests.traces.options import DROP_REASONS, TracesOptions
from sidecar.requests.traces.otlp_receiver import OtlpReceiver
from sidecar.settings import Settings

__all__ = ["DROP_REASONS", "source"]


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
    receiver = OtlpReceiver(sink, options)
    with listening("SPECDEC_TRACES__LISTEN", settings.traces.listen):
        host, port = await receiver.start(settings.traces.listen.host, settings.traces.listen.port)
    log.info("the traces receiver listens", listen=f"{host}:{port}")
    try:
        yield lambda: None
    finally:
        await receiver.stop()
