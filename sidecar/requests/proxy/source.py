"""The ``proxy`` source: the proxy on its address, observed."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

from sidecar.errors import listening
from sidecar.http.access import Access
from sidecar.log import Log
from sidecar.requests.observe.exchange_observer import Fault
from sidecar.requests.observe.usage import AskUsage, UsageAsker
from sidecar.requests.proxy.observer import OUT_OF_MEMORY, observer_factory
from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.server import ProxyServer
from sidecar.requests.proxy.version import follow_version
from sidecar.requests.source import RequestSink, Stats
from sidecar.settings.addresses import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySource:
    """Forwards to the one vLLM; drains for at most ``drain_seconds`` when the block is left."""

    drop_reasons: ClassVar = frozenset([*map(str, Fault), OUT_OF_MEMORY])
    listen: Address
    upstream: Upstream
    options: ProxyOptions
    observe_bytes: int
    ask_usage: AskUsage
    drain_seconds: float
    access: Access | None = None

    @asynccontextmanager
    async def open(self, sink: RequestSink, log: Log, *, offsets: bool) -> AsyncIterator[Stats]:
        """See ``RequestSource``."""
        asker = UsageAsker(self.ask_usage, max_bytes=self.observe_bytes)
        observers = observer_factory(sink, max_bytes=self.observe_bytes, offsets=offsets, asker=asker)
        server = ProxyServer(
            self.upstream, self.options, observers, time.monotonic, log, access=self.access, upstream_lost=asker.forget
        )
        with listening("SPECDEC_PROXY__LISTEN", self.listen):
            host, port = await server.start(self.listen.host, self.listen.port)
        log.info("proxy listening", address=f"{host}:{port}")
        version = asyncio.create_task(follow_version(self.upstream, asker)) if asker.needs_version else None
        try:
            yield lambda: server.stats
        finally:
            if version is not None:
                version.cancel()
            cut = await server.drain(self.drain_seconds)
            if cut:
                log.warning("requests cut at shutdown", requests=cut)
