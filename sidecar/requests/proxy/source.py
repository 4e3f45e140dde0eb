"""The ``proxy`` source: the proxy on its address, observed."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Final

import aiohttp
import msgspec

from sidecar.errors import listening
from sidecar.http.access import Access
from sidecar.log import Log
from sidecar.requests.observe.exchange_observer import Fault
from sidecar.requests.observe.payload import UNREADABLE
from sidecar.requests.observe.usage import AskUsage, UsageAsker
from sidecar.requests.proxy.observer import OUT_OF_MEMORY, observer_factory
from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.server import ProxyServer
from sidecar.requests.source import RequestSink, Stats
from sidecar.settings.addresses import Address

_EVERY: Final = 2.0  # seconds between two requests for vLLM's version, while it is unknown
_TIMEOUT: Final = 5.0  # seconds for one
_LARGEST: Final = 4096  # bytes
_FAILURES: Final = (aiohttp.ClientError, OSError, *UNREADABLE)


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
        version = asyncio.create_task(_follow_version(self.upstream, asker)) if asker.needs_version else None
        try:
            yield lambda: server.stats
        finally:
            if version is not None:
                version.cancel()
            cut = await server.drain(self.drain_seconds)
            if cut:
                log.warning("requests cut at shutdown", requests=cut)


class _Version(msgspec.Struct):
    version: str


async def _follow_version(upstream: Upstream, asker: UsageAsker) -> None:
    """Sets ``asker.version`` from vLLM's ``/version`` whenever it is unknown; runs until cancelled."""
    scheme = "http" if upstream.ssl is None else "https"
    url = f"{scheme}://{upstream.authority.decode()}/version"
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
        while True:
            if asker.version is None:
                with suppress(*_FAILURES):
                    async with session.get(url, ssl=upstream.ssl or True, allow_redirects=False) as response:
                        body = await response.content.read(_LARGEST)
                        asker.version = msgspec.json.decode(body, type=_Version).version
            await asyncio.sleep(_EVERY)
