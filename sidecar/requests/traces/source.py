"""The ``traces`` source: receives vLLM's spans."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

from sidecar.errors import listening
from sidecar.http.access import Access
from sidecar.log import Log
from sidecar.requests.source import RequestSink, Stats
from sidecar.requests.traces.otlp_receiver import OtlpReceiver, TracesOptions
from sidecar.requests.traces.refusal import DROP_REASONS
from sidecar.settings.addresses import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesSource:
    """Listens for OTLP/HTTP."""

    drop_reasons: ClassVar = DROP_REASONS
    listen: Address
    options: TracesOptions
    access: Access | None = None

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
