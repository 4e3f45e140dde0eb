"""vLLM's own speculation counters before and after a level, for replies without per-request numbers."""

import asyncio
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.acceptance import Acceptance
from sidecar.engine.merge import merge
from sidecar.engine.names import SPECULATION, Gauge
from sidecar.engine.page_source import PageSource
from sidecar.errors import ScrapeError

_PAUSE: Final = 0.2  # seconds between two readings
_READINGS: Final = 10


@dataclass(frozen=True, slots=True)
class Reading:
    """One page: ``counted`` is None if it has no usable counters; ``busy``: requests are running or waiting."""

    counted: Acceptance | None = None
    busy: bool = False

    def since(self, before: "Reading") -> Acceptance | None:
        """The counters' growth; None without counters, or if vLLM restarted in between."""
        now, then = self.counted, before.counted
        if now is None or then is None:
            return None
        grown = Acceptance(
            drafts=now.drafts - then.drafts,
            draft_tokens=now.draft_tokens - then.draft_tokens,
            accepted_tokens=now.accepted_tokens - then.accepted_tokens,
            accepted_per_position=tuple(
                later - earlier
                for later, earlier in zip(now.accepted_per_position, then.accepted_per_position, strict=False)
            ),
        )
        return grown if min(grown.drafts, grown.draft_tokens, grown.accepted_tokens) >= 0 else None


class CounterReader:
    """Reads one server's page; ``model`` selects the engines if the page has several models."""

    def __init__(self, source: PageSource, model: str) -> None:
        self._source = source
        self._model = model

    async def settled(self) -> Reading | None:
        """The page once the counters no longer change, at the latest after two seconds; None without a page.

        vLLM counts a step shortly after it has sent the step's tokens.
        """
        reading = await self._read()
        for _ in range(_READINGS):
            if reading is None:
                return None
            await asyncio.sleep(_PAUSE)
            before, reading = reading, await self._read()
            if reading == before and not before.busy:
                break
        return reading

    async def _read(self) -> Reading | None:
        try:
            engines = (await self._source.next()).engines
        except ScrapeError:
            return None
        if len({engine.key.model_name for engine in engines}) > 1:
            engines = tuple(engine for engine in engines if engine.key.model_name == self._model)
        if not engines:
            return Reading()
        one = merge(engines)
        busy = any(one.gauges.get(gauge, 0) > 0 for gauge in (Gauge.REQUESTS_RUNNING, Gauge.REQUESTS_WAITING))
        if one.traits or not all(counter in one.counters for counter in SPECULATION):
            return Reading(None, busy)
        drafts, draft_tokens, accepted = (one.counters[counter] for counter in SPECULATION)
        counted = Acceptance(
            drafts=drafts,
            draft_tokens=draft_tokens,
            accepted_tokens=accepted,
            accepted_per_position=one.accepted_per_position,
        )
        return Reading(counted, busy)
