"""The ``traces`` source: receives vLLM's spans."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sidecar.errors import listening
from sidecar.http.access import Access
from sidecar.log import Log
from sidecar.requests.source import RequestSink, Stats
from sidecar.requests.traces.options import DROP_REASONS, TracesOptions
from sidecar.requests.traces.otlp_receiver import OtlpReceiver
from sidecar.settings.addresses import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesSource:
    """Listens for OTLP/HTTP."""

    listen: Address
    options: TracesOptions
    access: Access | None = None

    @property
    def drop_reasons(self) -> frozenset[str]:
        """See ``RequestSource``."""
        return frozenset(DROP_REASONS)

    @asynccontextmanager
    async def open(self, sink: RequestSink, log: Log, *, offsets: bool) -> AsyncIterator[Stats]:  # noqa: ARG002 - spans have none
        """See ``RequestSource``."""
        receiver = OtlpReceiver(sink, self.options, self.access)
        with listening("SPECDEC_TRACES__LISTEN", self.listen):
            host, port = await receiver.start(self.listen.host, self.listen.port)
        log.info("traces receiver listening", address=f"{host}:{port}")
        try:
            yield lambda: None
        finally:
            await receiver.stop()
