"""vLLM's own speculation counters before and after a level, for replies that have no numbers per request."""

import asyncio
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from sidecar.analysis.acceptance import Acceptance
from sidecar.engine.merge import merge
from sidecar.engine.names import SPECULATION, Counter, Gauge
from sidecar.engine.page_source import PageSource
from sidecar.engine.snapshot import EngineSnapshot
from sidecar.errors import ScrapeError

_PAUSE: Final = 0.2  # seconds between two readings
_READINGS: Final = 10
_OTHERS: Final = 0.01  # share of output tokens by which counters and replies may differ


def growth(before: EngineSnapshot | None, after: EngineSnapshot | None) -> Acceptance | None:
    """How much the counters grew; None without usable counters or if vLLM restarted in between."""
    if before is None or after is None or not _counts_drafts(before) or not _counts_drafts(after) or after.traits:
        return None
    drafts, draft_tokens, accepted = (after.counters[one] - before.counters[one] for one in SPECULATION)
    both = zip_longest(before.accepted_per_position, after.accepted_per_position, fillvalue=0.0)
    positions = tuple(new - old for old, new in both)
    if min(drafts, draft_tokens, accepted, *positions) < 0:
        return None
    return Acceptance(
        drafts=drafts, draft_tokens=draft_tokens, accepted_tokens=accepted, accepted_per_position=positions
    )


def _counts_drafts(engine: EngineSnapshot) -> bool:
    """Whether its speculation counters can be used: all of them are there."""
    return all(counter in engine.counters for counter in SPECULATION)


def served_others(
    before: EngineSnapshot | None, after: EngineSnapshot | None, ours: Sequence[int | None] | None
) -> bool:
    """Whether vLLM also served other clients; ``ours`` are a level's output tokens, None if not all requests completed.

    None of our requests is in flight at either reading.
    """
    if before is None or after is None:
        return False
    if _is_busy(before) or _is_busy(after):
        return True
    old, new = (one.counters.get(Counter.GENERATION_TOKENS) for one in (before, after))
    if ours is None or None in ours or old is None or new is None:
        return False
    return new - old > (1 + _OTHERS) * sum(filter(None, ours))


def _is_busy(engine: EngineSnapshot) -> bool:
    return any(engine.gauges.get(gauge, 0) > 0 for gauge in (Gauge.REQUESTS_RUNNING, Gauge.REQUESTS_WAITING))


class CounterReader:
    """Reads one server's page; ``model`` selects the engines if the page has more than one model."""

    def __init__(self, source: PageSource, model: str) -> None:
        self._source = source
        self._model = model

    async def settled(self) -> EngineSnapshot | None:
        """All engines as one, once they are idle and no counter changes, or after two seconds; None without a page.

        vLLM counts a step shortly after it has sent the step's tokens.
        """
        reading = await self.read()
        for _ in range(_READINGS):
            if reading is None:
                return None
            await asyncio.sleep(_PAUSE)
            before, reading = reading, await self.read()
            if reading is not None and reading.counters == before.counters and not _is_busy(reading):
                break
        return reading

    async def read(self) -> EngineSnapshot | None:
        """All engines as one, as they are now; None without a page."""
        try:
            engines = (await self._source.next()).engines
        except ScrapeError:
            return None
        if len({engine.key.model_name for engine in engines}) > 1:
            engines = tuple(engine for engine in engines if engine.key.model_name == self._model)
        return merge(engines)
