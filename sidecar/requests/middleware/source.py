"""The ``middleware`` source: the receiver of what the class in vLLM sends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sidecar.errors import listening
from sidecar.requests.middleware.event_receiver import DROP_REASONS, EventReceiver
from sidecar.requests.source import Log, RequestSink, Stats
from sidecar.settings import Settings

__all__ = ["DROP_REASONS", "source"]


@asynccontextmanager
async def source(
    settings: Settings,
    sink: RequestSink,
    log: Log,
    *,
    offsets: bool,  # noqa: ARG001 - the middleware does not send them
) -> AsyncIterator[Stats]:
    """Listens on the socket."""
    receiver = EventReceiver(settings.middleware.socket, sink)
    with listening("SPECDEC_MIDDLEWARE__SOCKET", settings.middleware.socket):
        await receiver.start()
    log.info("the middleware's socket listens", socket=str(settings.middleware.socket))
    try:
        yield lambda: None
    finally:
        await receiver.stop()
