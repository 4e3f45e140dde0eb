"""Runs one level: its requests on one server, and vLLM's counters around them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.acceptance import Acceptance
from sidecar.analysis.acceptance import together as sum_of
from sidecar.commands.stopping import unless_stopped
from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.counters import CounterReader
from sidecar.commands.sweep.options import MOST_AT_ONCE
from sidecar.commands.sweep.sample import Sample
from sidecar.commands.sweep.workload import Level, Load

_AFTER_FAILURE: Final = 0.1  # seconds: do not hammer a server that is down

_Ask = Callable[[int], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Server:
    """A server to measure."""

    client: Client
    counters: CounterReader


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
    stop: asyncio.Event
    on_end: Callable[[], None]


async def measure(server: Server, level: Level, task: Task) -> Measured:
    """One level, as far as it got before ``task.stop``."""
    before = await server.counters.settled()
    ended: list[Sample | None] = []  # None for a request that failed
    begun = time.monotonic()
    await unless_stopped(_run(server.client, level, task, ended), task.stop)
    seconds = time.monotonic() - begun
    after = await server.counters.settled()
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
    temperatures = level.workload.spread(task.requests)

    async def ask(number: int) -> bool:
        ended.append(await client.ask(task.prompts[number % len(task.prompts)], temperatures[number]))
        task.on_end()
        return ended[-1] is not None

    if level.load.at_once is not None:
        await _closed_loop(ask, task.requests, level.load.at_once)
    else:
        await _open_loop(ask, task.requests, level.load)


async def _closed_loop(ask: _Ask, requests: int, at_once: int) -> None:
    numbers = iter(range(requests))

    async def worker() -> None:
        for number in numbers:
            if not await ask(number):
                await asyncio.sleep(_AFTER_FAILURE)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, requests)):
            group.create_task(worker())


async def _open_loop(ask: _Ask, requests: int, load: Load) -> None:
    """Sends each request when it is due, even if the server falls behind."""
    gate = asyncio.Semaphore(MOST_AT_ONCE)
    clock = asyncio.get_running_loop().time
    begun = clock()

    async def one(number: int) -> None:
        async with gate:
            await ask(number)

    async with asyncio.TaskGroup() as group:
        for number, due in enumerate(load.arrivals(requests)):
            await asyncio.sleep(max(0.0, begun + due - clock()))
            group.create_task(one(number))


def together(parts: Sequence[Measured]) -> Measured:
    """The rounds of one level as one."""
    counted = [part.counted for part in parts if part.counted is not None]
    return Measured(
        level=parts[0].level,
        samples=tuple(one for part in parts for one in part.samples),
        failed=sum(part.failed for part in parts),
        seconds=sum(part.seconds for part in parts),
        counted=sum_of(counted) if len(counted) == len(parts) else None,
        others=any(part.others for part in parts),
        complete=all(part.complete for part in parts),
    )
