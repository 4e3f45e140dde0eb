"""The one chosen request source, for as long as a block lasts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from sidecar.requests.record import RequestSink
from sidecar.settings import Settings

if TYPE_CHECKING:  # what it imports would cost memory in every other mode
    from sidecar.requests.proxy.outcomes import ProxyStats

Stats = Callable[[], "ProxyStats | None"]


class Log(Protocol):
    """What of a structlog logger is needed here."""

    def info(self, event: str, **fields: Any) -> Any:
        """Log that something is as it is."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Log that something is wrong."""


def drop_reasons(settings: Settings) -> frozenset[str]:
    """Why events of the chosen source may be lost, so that each is counted from 0 on."""
    module = _module(settings)
    return frozenset() if module is None else module.DROP_REASONS


@asynccontextmanager
async def request_source(
    settings: Settings, sink: RequestSink, log: Log, *, offsets: bool = False
) -> AsyncIterator[Stats]:
    """Starts what ``requests.source`` names; gives the proxy's own counts, None for the other sources.

    ``offsets``: keep the time of each stream event, where the source can, for a recording.

    Raises:
        OSError: its address or socket can't be had.
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
