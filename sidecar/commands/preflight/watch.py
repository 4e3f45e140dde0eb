"""Watches a vLLM and its requests for a while; keeps only numbers, and a bounded amount of them."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from sidecar import wiring
from sidecar.commands.stopping import stop_on_signals, stopped
from sidecar.engine.fetch import Fetcher
from sidecar.engine.merge import merge
from sidecar.engine.names import SPECULATION, Gauge
from sidecar.engine.page_source import PageSource
from sidecar.errors import ScrapeError
from sidecar.requests.record import RequestRecord, RequestStart
from sidecar.settings import Settings

_MOST_REQUESTS: Final = 100_000  # further requests are counted but not kept
_EVERY: Final = 1.0  # seconds


@dataclass(slots=True, kw_only=True)
class Watched:
    """The observations; ``polls`` are vLLM's gauges at each poll, all engines together.

    ``version`` is from vLLM's ``/version``; ``speculates``: it already drafts.
    """

    seconds: float = 0.0
    requests: list[RequestRecord] = field(default_factory=list)
    not_kept: int = 0
    lost: int = 0
    polls: list[Mapping[Gauge, float]] = field(default_factory=list)
    version: str | None = None
    speculates: bool = False
    kv_tokens: float | None = None
    last_fault: str = ""

    def started(self, request: RequestStart) -> None:
        """See ``RequestSink``; only ends count."""

    def finished(self, record: RequestRecord) -> None:
        """See ``RequestSink``."""
        if len(self.requests) < _MOST_REQUESTS:
            self.requests.append(record)
        else:
            self.not_kept += 1

    def dropped(self, reason: str, count: int) -> None:  # noqa: ARG002 - the protocol's signature
        """See ``RequestSink``; the reason does not matter here."""
        self.lost += count


async def watch(settings: Settings, seconds: float) -> Watched:
    """Watches for ``seconds``, or until SIGTERM or SIGINT.

    Raises:
        ListenError: the request source cannot bind its address.
    """
    stop = stop_on_signals()
    found = Watched()
    clock = asyncio.get_running_loop().time
    begun = clock()
    fetcher = Fetcher(settings.vllms[0].vllm_url, wiring.fetch(settings))
    try:
        log = structlog.get_logger("sidecar")
        source = wiring.request_source(settings, wiring.source_access(settings, log))
        async with source.open(found, log, offsets=False):
            polling = asyncio.create_task(_poll(fetcher, settings, found))
            await stopped(stop, seconds)
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
    finally:
        await fetcher.close()
    found.seconds = clock() - begun
    return found


async def _poll(fetcher: Fetcher, settings: Settings, found: Watched) -> None:
    source = PageSource(fetcher, wiring.page_limits(settings), filtered=settings.scrape_filtered)
    while True:
        if found.version is None:
            with contextlib.suppress(ScrapeError):
                found.version = _version(await fetcher.get("/version"))
        try:
            page = await source.next()
        except ScrapeError as error:
            found.last_fault = f"{error.reason}: {error}"
        else:
            engine = merge(page.engines)
            found.polls.append(engine.gauges)
            found.speculates |= any(counter in engine.counters for counter in SPECULATION)
            found.kv_tokens = engine.kv_cache_capacity_tokens
        await asyncio.sleep(_EVERY)


def _version(body: bytes) -> str:
    """The version, or empty if vLLM does not report it."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    version = found.get("version") if isinstance(found, dict) else None
    return version if isinstance(version, str) and len(version) < 64 else ""
