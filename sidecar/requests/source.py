"""The one configured request source, for as long as a block lasts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from sidecar.requests.record import RequestRecord, RequestStart
from sidecar.settings import Settings

if TYPE_CHECKING:  # what it imports would cost memory with every other source
    from sidecar.requests.proxy.outcomes import ProxyStats

Stats = Callable[[], "ProxyStats | None"]


class RequestSink(Protocol):
    """Takes what a source observes. Calls are quick, never block and never raise."""

    def started(self, request: RequestStart) -> None:
        """A request has begun; exactly one ``finished`` with its id follows, unless the source dies."""

    def finished(self, record: RequestRecord) -> None:
        """A request has ended; ``started`` may not have been called for it (traces report only ends)."""

    def dropped(self, reason: str, count: int) -> None:
        """``count`` events were lost or refused; ``reason`` is one of a small fixed set."""


class Log(Protocol):
    """The part of a structlog logger that is used here."""

    def info(self, event: str, **fields: Any) -> Any:
        """Log that something is as it is."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Log that something is wrong."""


def drop_reasons(settings: Settings) -> frozenset[str]:
    """The reasons for which the configured source may drop events: each is counted from 0 on."""
    module = _module(settings)
    return frozenset() if module is None else module.DROP_REASONS


@asynccontextmanager
async def request_source(
    settings: Settings, sink: RequestSink, log: Log, *, offsets: bool = False
) -> AsyncIterator[Stats]:
    """Starts the source that ``requests.source`` names; yields the proxy's own counts, None for the other sources.

    ``offsets``: keep the time of each stream event, if the source can, for a recording.

    Raises:
        OSError: cannot bind its address or socket.
    """
    module = _module(settings)
    if module is None:
        yield lambda: None
        return
    async with module.source(settings, sink, log, offsets=offsets) as stats:
        yield stats


def _module(settings: Settings) -> ModuleType | None:
    source = settings.requests.source
    return None if source == "none" else import_module(f"sidecar.requests.{source}.source")
