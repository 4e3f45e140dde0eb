"""vLLM's own speculation counters before and after a level, for replies without per-request numbers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.engine.merge import merge
from sidecar.engine.names import SPECULATION, Counter, Gauge
from sidecar.engine.page_source import PageSource
from sidecar.engine.snapshot import EngineSnapshot
from sidecar.errors import ScrapeError

_PAUSE: Final = 0.2  # seconds between two readings
_READINGS: Final = 10


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters of one model, all its engines together. ``positions[p]``: accepted tokens at draft position p."""

    drafts: float
    draft_tokens: float
    accepted_tokens: float
    positions: tuple[float, ...]

    def plus(self, other: "Counted") -> "Counted":
        """The growth of two stretches of time together."""
        return Counted(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            tuple(one + more for one, more in zip(self.positions, other.positions, strict=False)),
        )

    def since(self, before: "Counted") -> "Counted | None":
        """The growth; None if vLLM restarted in between."""
        grown = Counted(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted_tokens - before.accepted_tokens,
            tuple(now - then for now, then in zip(self.positions, before.positions, strict=False)),
        )
        return grown if min(grown.drafts, grown.draft_tokens, grown.accepted_tokens) >= 0 else None


@dataclass(frozen=True, slots=True)
class Reading:
    """One page: ``counted`` is None if it has no usable counters; ``busy``: requests run or wait."""

    counted: Counted | None
    busy: bool


class CounterReader:
    """Reads one server's page; ``model`` selects the engines if the page has several models."""

    def __init__(self, source: PageSource, model: str) -> None:
        self._source = source
        self._model = model

    async def settled(self) -> Reading | None:
        """The page once the counters stand still, or after two seconds as it is; None without a page.

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
            page = await self._source.next()
        except ScrapeError:
            return None
        engines = page.engines
        if len({engine.key.model_name for engine in engines}) > 1:
            engines = tuple(engine for engine in engines if engine.key.model_name == self._model)
        return _reading(engines) if engines else Reading(None, busy=False)


def _reading(engines: Sequence[EngineSnapshot]) -> Reading:
    one = merge(engines)
    busy = any(one.gauges.get(gauge, 0) > 0 for gauge in (Gauge.REQUESTS_RUNNING, Gauge.REQUESTS_WAITING))
    if one.traits or not all(counter in one.counters for counter in SPECULATION):
        return Reading(None, busy)
    counted = Counted(
        one.counters[Counter.DRAFTS],
        one.counters[Counter.DRAFT_TOKENS],
        one.counters[Counter.ACCEPTED_TOKENS],
        one.accepted_per_position,
    )
    return Reading(counted, busy)
