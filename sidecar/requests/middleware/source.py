"""The ``middleware`` source: receives what the class in vLLM sends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sidecar.errors import listening
from sidecar.log import Log
from sidecar.requests.middleware.event_receiver import DROP_REASONS, EventReceiver
from sidecar.requests.source import RequestSink, Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class MiddlewareSource:
    """Listens on a Unix socket."""

    drop_reasons: ClassVar = DROP_REASONS
    socket: Path
    uid: int | None = None  # of vLLM's process; None: any process that can open the socket is accepted

    @asynccontextmanager
    async def open(self, sink: RequestSink, log: Log, *, offsets: bool) -> AsyncIterator[Stats]:  # noqa: ARG002 - not sent
        """See ``RequestSource``."""
        receiver = EventReceiver(self.socket, sink, uid=self.uid, log=log)
        with listening("SPECDEC_MIDDLEWARE__SOCKET", self.socket):
            await receiver.start()
        log.info("middleware socket listening", socket=str(self.socket))
        try:
            yield lambda: None
        finally:
            await receiver.stop()
