"""The one chosen request source, for as long as a block lasts."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sidecar import options
from sidecar.requests.record import RequestSink
from sidecar.requests.relay.pool import Log
from sidecar.requests.relay.stats import RelayStats
from sidecar.settings import Settings

Stats = Callable[[], RelayStats | None]


@asynccontextmanager
async def request_source(
    settings: Settings, sink: RequestSink, log: Log, *, offsets: bool = False
) -> AsyncIterator[Stats]:
    """Starts what ``requests.source`` names; gives the proxy's own counts, None for the other sources.

    What a source needs is imported with it: the others don't pay for it in memory. ``offsets``: keep the time of each
    stream event, where the source can, for a recording.

    Raises:
        OSError: its address or socket can't be had.
    """
    match settings.requests.source:
        case "proxy":
            async with _proxy(settings, sink, log, offsets=offsets) as stats:
                yield stats
        case "middleware":
            async with _middleware(settings, sink):
                yield lambda: None
        case "traces":
            async with _traces(settings, sink):
                yield lambda: None
        case "none":
            yield lambda: None


@asynccontextmanager
async def _proxy(settings: Settings, sink: RequestSink, log: Log, *, offsets: bool) -> AsyncIterator[Stats]:
    from sidecar.requests.proxy import observer_factory  # noqa: PLC0415 - see request_source
    from sidecar.requests.relay import Relay  # noqa: PLC0415

    relay = Relay(
        options.upstream(settings),
        options.relay(settings),
        observer_factory(sink, max_bytes=settings.proxy.observe_bytes, offsets=offsets),
        time.monotonic,
        log,
    )
    host, port = await relay.start(settings.proxy.listen.host, settings.proxy.listen.port)
    log.info("the proxy listens", listen=f"{host}:{port}")
    try:
        yield lambda: relay.stats
    finally:
        cut = await relay.drain(settings.proxy.drain_timeout)
        if cut:
            log.warning("requests were cut when the proxy stopped", requests=cut)


@asynccontextmanager
async def _middleware(settings: Settings, sink: RequestSink) -> AsyncIterator[None]:
    from sidecar.requests.receiver import MiddlewareReceiver  # noqa: PLC0415 - see request_source

    receiver = MiddlewareReceiver(settings.middleware.socket, sink)
    await receiver.start()
    try:
        yield
    finally:
        await receiver.stop()


@asynccontextmanager
async def _traces(settings: Settings, sink: RequestSink) -> AsyncIterator[None]:
    from sidecar.requests.traces.receiver import TracesReceiver  # noqa: PLC0415 - see request_source

    receiver = TracesReceiver(sink, options.traces(settings))
    await receiver.start(settings.traces.listen.host, settings.traces.listen.port)
    try:
        yield
    finally:
        await receiver.stop()
