"""Runs one level: its requests on one server, and vLLM's counters around them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sidecar.commands.stopping import unless_stopped
from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.counters import CounterReader, growth, served_others
from sidecar.commands.sweep.measured import Measured
from sidecar.commands.sweep.options import MOST_AT_ONCE, SweepOptions
from sidecar.commands.sweep.sample import Sample
from sidecar.commands.sweep.workload import Level

_AFTER_FAILURE: Final = 0.1  # seconds, so as not to hammer a server that is down


@dataclass(frozen=True, slots=True)
class Server:
    """A server to measure."""

    client: Client
    counters: CounterReader


async def measure(
    server: Server, level: Level, options: SweepOptions, stop: asyncio.Event, on_end: Callable[[str], None]
) -> Measured:
    """One round of a level, as far as it got before ``stop``; calls ``on_end`` after each request."""
    before = await server.counters.settled()
    prompts = options.requests.prompts
    ended: list[Sample | None] = []  # None for a request that failed
    begun = time.monotonic()

    async def ask(number: int, temperature: float) -> None:
        ended.append(await server.client.ask(prompts[number % len(prompts)], temperature))
        on_end(str(level))
        if ended[-1] is None:
            await asyncio.sleep(_AFTER_FAILURE)

    await unless_stopped(_send(level, options.count, ask), stop)
    seconds = time.monotonic() - begun
    after = await server.counters.settled()
    samples = tuple(one for one in ended if one is not None)
    ours = [one.tokens for one in samples] if len(samples) == options.count else None
    return Measured(
        samples=samples,
        failed=ended.count(None),
        seconds=seconds,
        counted=growth(before, after),
        others=served_others(before, after, ours),
        complete=len(ended) == options.count,
    )


async def _send(level: Level, requests: int, ask: Callable[[int, float], Awaitable[None]]) -> None:
    """Sends each request when it is due and has a slot; an open loop has slots even if the server falls behind."""
    room = asyncio.Semaphore(level.load.at_once or MOST_AT_ONCE)
    clock = asyncio.get_running_loop().time
    begun = clock()

    async def one(number: int, temperature: float) -> None:
        try:
            await ask(number, temperature)
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for number, (due, temperature) in enumerate(
            zip(level.load.arrivals(requests), level.workload.spread(requests), strict=True)
        ):
            await asyncio.sleep(max(0.0, begun + due - clock()))
            await room.acquire()
            group.create_task(one(number, temperature))
