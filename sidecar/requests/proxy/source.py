"""The ``proxy`` source: the proxy on its address, observed."""

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from sidecar import wiring
from sidecar.errors import listening
from sidecar.requests.observe.exchange_observer import Fault
from sidecar.requests.proxy.observer import observer_factory
from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.server import ProxyServer
from sidecar.requests.source import Log, RequestSink, Stats
from sidecar.settings import Settings

DROP_REASONS = frozenset(map(str, Fault))


@asynccontextmanager
async def source(settings: Settings, sink: RequestSink, log: Log, *, offsets: bool) -> AsyncIterator[Stats]:
    """Forwards to the one vLLM; drains when the block is left."""
    server = ProxyServer(
        _upstream(settings),
        _options(settings),
        observer_factory(sink, max_bytes=settings.proxy.observe_bytes, offsets=offsets),
        time.monotonic,
        log,
    )
    with listening("SPECDEC_PROXY__LISTEN", settings.proxy.listen):
        host, port = await server.start(settings.proxy.listen.host, settings.proxy.listen.port)
    log.info("proxy listening", address=f"{host}:{port}")
    try:
        yield lambda: server.stats
    finally:
        cut = await server.drain(settings.proxy.drain_timeout)
        if cut:
            log.warning("requests cut at shutdown", requests=cut)


def _upstream(settings: Settings) -> Upstream:
    """The scheme, host and port of the one vLLM."""
    url = urlsplit(settings.vllms[0].vllm_url)
    if url.scheme != "https":
        return Upstream(url.hostname or "", url.port or 80)
    tls = wiring.tls(settings)
    if tls is True:
        tls = ssl.create_default_context()
    elif tls is False:
        tls = ssl._create_unverified_context()  # noqa: S323, SLF001 - vllm_tls_verify is off
    return Upstream(url.hostname or "", url.port or 443, tls)


def _options(settings: Settings) -> ProxyOptions:
    proxy = settings.proxy
    return ProxyOptions(
        max_connections=proxy.max_connections,
        max_header_bytes=proxy.max_header_bytes,
        max_body_bytes=proxy.max_body_bytes,
        send_idle_seconds=proxy.send_timeout,
        header_seconds=proxy.header_timeout,
        connect_seconds=proxy.connect_timeout,
    )
