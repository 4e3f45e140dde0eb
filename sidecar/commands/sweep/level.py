"""Runs one level: a number of requests, so many of them at once, and vLLM's counters around them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.attribution.result import AttributedRequest, Attribution, attributed
from sidecar.commands.stopping import unless_stopped
from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.counters import Counted, CounterReader
from sidecar.commands.sweep.options import Level
from sidecar.requests.record import Outcome, RequestRecord

_AFTER_FAILURE: Final = 0.1  # seconds: a server that is down is not hammered


@dataclass(frozen=True, slots=True)
class Measured:
    """One level on one server. ``requests`` are the completed ones, ``exact`` those with vLLM's own numbers.

    ``seconds`` is the time from the first request's start to the last one's end. ``counted`` is the growth of vLLM's
    counters meanwhile, None where there are none; ``others``: vLLM was serving somebody else, who is in it.
    """

    level: Level
    requests: tuple[AttributedRequest, ...]
    exact: int
    completion_tokens: int
    failed: int
    seconds: float
    counted: Counted | None
    others: bool
    complete: bool


@dataclass(slots=True)
class _Tally:
    requests: list[AttributedRequest] = field(default_factory=list)
    exact: int = 0
    completion_tokens: int = 0
    failed: int = 0

    def add(self, record: RequestRecord, temperature: float) -> None:
        if record.outcome is not Outcome.COMPLETED:
            self.failed += 1
            return
        self.completion_tokens += record.completion_tokens or 0
        numbers = record.acceptance
        self.exact += numbers is not None
        work = (numbers.drafts, numbers.draft_tokens, numbers.accepted_tokens) if numbers else (0, 0, 0)
        kind = Attribution.NONE if numbers is None else Attribution.EXACT
        self.requests.append(attributed(record, f"{temperature:g}", kind, work))


@dataclass(frozen=True, slots=True)
class Work:
    """What every level has in common. ``told`` is called after each request; ``stop`` ends a level early."""

    model: str
    prompts: Sequence[str]
    requests: int
    max_tokens: int
    stop: asyncio.Event
    told: Callable[[], None]


async def measure(client: Client, counters: CounterReader, level: Level, work: Work) -> Measured:
    """One level, as far as it got before ``work.stop``."""
    before = await counters.settled()
    tally = _Tally()
    begun = time.monotonic()
    await _ask_all(client, level, work, tally)
    seconds = time.monotonic() - begun
    after = await counters.settled()
    grown = None
    if before is not None and after is not None and before.counted is not None and after.counted is not None:
        grown = after.counted.since(before.counted)
    return Measured(
        level,
        tuple(tally.requests),
        tally.exact,
        tally.completion_tokens,
        tally.failed,
        seconds,
        grown,
        others=before is not None and before.busy,
        complete=len(tally.requests) + tally.failed == work.requests,
    )


async def _ask_all(client: Client, level: Level, work: Work, tally: _Tally) -> None:
    numbers = iter(range(work.requests))

    async def worker() -> None:
        for number in numbers:
            prompt = work.prompts[number % len(work.prompts)]
            record = await client.ask(work.model, prompt, level.temperature, work.max_tokens)
            tally.add(record, level.temperature)
            work.told()
            if record.outcome is not Outcome.COMPLETED:
                await asyncio.sleep(_AFTER_FAILURE)

    async def everything() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(level.at_once, work.requests)):
                group.create_task(worker())

    await unless_stopped(everything(), work.stop)
