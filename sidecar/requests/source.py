"""What all request sources have in common: how they are opened, and why they may lose events."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Protocol

from sidecar.log import Log
from sidecar.requests.record import RequestRecord, RequestStart

if TYPE_CHECKING:  # importing it would cost memory with every other source
    from sidecar.requests.proxy.outcomes import ProxyStats

Stats = Callable[[], "ProxyStats | None"]
"""The proxy's own counts; None for the other sources."""


class RequestSink(Protocol):
    """Takes what a source observes. Calls are quick, never block and never raise."""

    def started(self, request: RequestStart) -> None:
        """A request has begun; exactly one ``finished`` with its id follows, unless the source dies."""

    def finished(self, record: RequestRecord) -> None:
        """A request has ended; ``started`` may not have been called for it, since traces report only ends."""

    def dropped(self, reason: str, count: int) -> None:
        """``count`` events were lost or refused; ``reason`` is one of a small fixed set."""


class RequestSource(Protocol):
    """One way to observe requests; ``drop_reasons`` are counted from 0 on."""

    @property
    def drop_reasons(self) -> frozenset[str]:
        """Why events may be lost."""

    def open(self, sink: RequestSink, log: Log, *, offsets: bool) -> AbstractAsyncContextManager[Stats]:
        """Delivers to ``sink`` until the block is left.

        ``offsets``: keep the time of each stream event, if the source can, for a recording.

        Raises:
            ListenError: it cannot bind its address or socket.
        """


class NoSource:
    """Observes no requests."""

    drop_reasons: ClassVar = frozenset[str]()

    @asynccontextmanager
    async def open(self, sink: RequestSink, log: Log, *, offsets: bool) -> AsyncIterator[Stats]:  # noqa: ARG002 - the protocol's signature
        """Delivers nothing."""
        yield lambda: None
