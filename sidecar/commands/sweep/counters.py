"""vLLM's own speculation counters before and after a level, for replies without per-request numbers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from sidecar.analysis.acceptance import Acceptance
from sidecar.engine.merge import merge
from sidecar.engine.names import SPECULATION, Counter, Gauge
from sidecar.engine.page_source import PageSource
from sidecar.errors import ScrapeError

_PAUSE: Final = 0.2  # seconds between two readings
_READINGS: Final = 10
_OTHERS: Final = 0.01  # share of output tokens by which counters and replies may differ


@dataclass(frozen=True, slots=True)
class Reading:
    """One page: the counters and those by position, empty if unusable.

    ``generated`` are the output tokens of all requests; ``busy``: requests are running or waiting.
    """

    counters: tuple[float, ...] = ()
    generated: float | None = None
    busy: bool = False


def growth(before: Reading | None, after: Reading | None) -> Acceptance | None:
    """None without counters, or if vLLM restarted in between."""
    if before is None or after is None or not before.counters or not after.counters:
        return None
    grown = [new - old for old, new in zip_longest(before.counters, after.counters, fillvalue=0.0)]
    if min(grown) < 0:
        return None
    drafts, draft_tokens, accepted, *positions = grown
    return Acceptance(
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted,
        accepted_per_position=tuple(positions),
    )


def served_others(before: Reading | None, after: Reading | None, ours: Sequence[int | None] | None) -> bool:
    """Whether vLLM worked for other clients, too; ``ours`` are a level's output tokens, None if requests were aborted.

    None of ``ours`` is in flight at either reading.
    """
    if before is None or after is None:
        return False
    if before.busy or after.busy:
        return True
    if ours is None or None in ours or before.generated is None or after.generated is None:
        return False
    return after.generated - before.generated > (1 + _OTHERS) * sum(filter(None, ours))


class CounterReader:
    """Reads one server's page; ``model`` selects the engines if the page has several models."""

    def __init__(self, source: PageSource, model: str) -> None:
        self._source = source
        self._model = model

    async def settled(self) -> Reading | None:
        """The page once the counters no longer change, at the latest after two seconds; None without a page.

        vLLM counts a step shortly after it has sent the step's tokens.
        """
        reading = await self.read()
        for _ in range(_READINGS):
            if reading is None:
                return None
            await asyncio.sleep(_PAUSE)
            before, reading = reading, await self.read()
            if reading == before and not before.busy:
                break
        return reading

    async def read(self) -> Reading | None:
        """The page as it is; None without one."""
        try:
            engines = (await self._source.next()).engines
        except ScrapeError:
            return None
        if len({engine.key.model_name for engine in engines}) > 1:
            engines = tuple(engine for engine in engines if engine.key.model_name == self._model)
        one = merge(engines)
        usable = not one.traits and all(counter in one.counters for counter in SPECULATION)
        return Reading(
            counters=(*(one.counters[counter] for counter in SPECULATION), *one.accepted_per_position)
            if usable
            else (),
            generated=one.counters.get(Counter.GENERATION_TOKENS),
            busy=any(one.gauges.get(gauge, 0) > 0 for gauge in (Gauge.REQUESTS_RUNNING, Gauge.REQUESTS_WAITING)),
        )
