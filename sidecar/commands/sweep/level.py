"""Runs one level: its requests on one server, and vLLM's counters around them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final

from sidecar.analysis.acceptance import Acceptance, over_engines
from sidecar.commands.stopping import unless_stopped
from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.counters import CounterReader
from sidecar.commands.sweep.options import MOST_AT_ONCE, Level, Workload
from sidecar.commands.sweep.sample import Sample, sample
from sidecar.requests.record import Outcome

_AFTER_FAILURE: Final = 0.1  # seconds: do not hammer a server that is down

_Ask = Callable[[int], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One level on one server. ``samples`` are its completed requests in the order of their ends.

    ``seconds`` is the time from the first request's start to the last one's end. ``counted`` is the growth of vLLM's
    counters meanwhile, None if there are none; ``others``: it includes the work for other clients.
    """

    level: Level
    samples: tuple[Sample, ...]
    failed: int
    seconds: float
    counted: Acceptance | None
    others: bool
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all levels share. ``on_end`` is called after each request; ``stop`` ends a level early."""

    prompts: Sequence[str]
    requests: int
    max_tokens: int
    stop: asyncio.Event
    on_end: Callable[[], None]


async def measure(client: Client, counters: CounterReader, level: Level, task: Task) -> Measured:
    """One level, as far as it got before ``task.stop``."""
    before = await counters.settled()
    ended: list[Sample | None] = []  # None for a request that failed
    begun = time.monotonic()
    await unless_stopped(_run(client, level, task, ended), task.stop)
    seconds = time.monotonic() - begun
    after = await counters.settled()
    return Measured(
        level=level,
        samples=tuple(one for one in ended if one is not None),
        failed=ended.count(None),
        seconds=seconds,
        counted=None if before is None or after is None else after.since(before),
        others=before is not None and before.busy,
        complete=len(ended) == task.requests,
    )


async def _run(client: Client, level: Level, task: Task, ended: list[Sample | None]) -> None:
    temperatures = spread(level.workload, task.requests)

    async def ask(number: int) -> bool:
        temperature, prompt = temperatures[number], task.prompts[number % len(task.prompts)]
        record = await client.ask(prompt, temperature, task.max_tokens)
        completed = record.outcome is Outcome.COMPLETED
        ended.append(sample(record, temperature) if completed else None)
        task.on_end()
        return completed

    if level.load.at_once is not None:
        await _closed_loop(ask, task.requests, level.load.at_once)
    else:
        await _open_loop(ask, task.requests, level.load.rate or 1.0)


async def _closed_loop(ask: _Ask, requests: int, at_once: int) -> None:
    numbers = iter(range(requests))

    async def worker() -> None:
        for number in numbers:
            if not await ask(number):
                await asyncio.sleep(_AFTER_FAILURE)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, requests)):
            group.create_task(worker())


async def _open_loop(ask: _Ask, requests: int, rate: float) -> None:
    """Sends each request when it is due, even if the server falls behind."""
    gate = asyncio.Semaphore(MOST_AT_ONCE)
    clock = asyncio.get_running_loop().time
    begun = clock()

    async def one(number: int) -> None:
        async with gate:
            await ask(number)

    async with asyncio.TaskGroup() as group:
        for number, due in enumerate(arrivals(requests, rate)):
            await asyncio.sleep(max(0.0, begun + due - clock()))
            group.create_task(one(number))


def arrivals(requests: int, rate: float) -> list[float]:
    """Seconds from the first request to each: a Poisson process, the same in every run."""
    random = Random(0)  # noqa: S311 - simulated arrivals
    return [0.0, *accumulate(random.expovariate(rate) for _ in range(requests - 1))]


def together(parts: Sequence[Measured]) -> Measured:
    """The rounds of one level as one."""
    counted = [part.counted for part in parts if part.counted is not None]
    return Measured(
        level=parts[0].level,
        samples=tuple(one for part in parts for one in part.samples),
        failed=sum(part.failed for part in parts),
        seconds=sum(part.seconds for part in parts),
        counted=over_engines(counted) if len(counted) == len(parts) else None,
        others=any(part.others for part in parts),
        complete=all(part.complete for part in parts),
    )


def spread(workload: Workload, requests: int) -> list[float]:
    """Temperatures by their weights, in an order that is mixed and the same in every run."""
    total = sum(weight for _, weight in workload.weights)
    bounds, reached = [], 0.0
    for temperature, weight in workload.weights:
        reached += weight
        bounds.append((reached / total * requests, temperature))
    found = [next((one for bound, one in bounds if number + 0.5 <= bound), bounds[-1][1]) for number in range(requests)]
    Random(0).shuffle(found)  # noqa: S311 - a reproducible order
    return found
