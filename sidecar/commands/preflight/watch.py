"""Watches a vLLM and its requests for a while; keeps only numbers, and a bounded number of them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from sidecar.commands.stopping import stop_on_signals, stopped
from sidecar.commands.watching import first_page, polling
from sidecar.engine.merge import merge
from sidecar.engine.names import Gauge
from sidecar.engine.page_source import page_source
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.requests.messages import FinishedRequest, Hello, Message, ReportPart, Unreadable
from sidecar.requests.receiver import PluginReceiver
from sidecar.settings import Settings

_MOST_REQUESTS: Final = 100_000  # further requests are counted but not kept


@dataclass(slots=True, kw_only=True)
class Watched:
    """The observations; it is the sink for vLLM's pages and for the plug-in's messages.

    ``polls`` are vLLM's gauges, all engines together. ``lost`` counts the requests past the limit. ``problem`` says why
    the plug-in cannot report.
    """

    seconds: float = 0.0
    hellos: list[Hello] = field(default_factory=list)
    requests: list[FinishedRequest] = field(default_factory=list)
    lost: int = 0
    polls: list[Mapping[Gauge, float]] = field(default_factory=list)
    speculates: bool = False
    kv_tokens: float | None = None
    problem: str = ""

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:  # noqa: ARG002 - the protocol's signature
        """See ``ScrapeSink``."""
        engine = merge(page.engines)
        self.polls.append(engine.gauges)
        self.speculates |= engine.speculates
        self.kv_tokens = engine.kv_cache_capacity_tokens

    def failed(self, at: float, error: ScrapeError) -> None:
        """See ``ScrapeSink``."""

    def heard(self, connection: int, message: Message) -> None:  # noqa: ARG002 - the signature is the sink's
        """See ``PluginSink``."""
        match message:
            case Hello():
                self.hellos = [one for one in self.hellos if one.start != message.start] + [message]
                self.speculates |= message.speculation is not None
            case ReportPart():
                room = _MOST_REQUESTS - len(self.requests)
                self.requests += message.finished[:room]
                self.lost += len(message.finished[room:])
            case Unreadable():
                self.problem = f"it uses another message format ({message.version}); rewrite it with this sidecar"


async def watch(settings: Settings, seconds: float) -> Watched:
    """Watches for ``seconds`` or until a signal stops it; not at all if vLLM already speculates.

    Raises:
        MeasurementError: vLLM's first page cannot be read.
    """
    stop = stop_on_signals()
    found = Watched()
    clock = asyncio.get_running_loop().time
    begun = clock()
    receiver = PluginReceiver(settings.plugin.socket, found.heard, structlog.get_logger("sidecar"))
    async with page_source(settings, settings.limits) as source, receiver:
        found.scraped(begun, 0.0, 0.0, await first_page(source, settings.vllm_url))
        if not found.speculates:
            async with polling(source, settings, found):
                await stopped(stop, seconds)
        found.problem = found.problem or receiver.problem
    found.seconds = clock() - begun
    return found
