"""The whole sweep: level by level, also on the baseline if there is one, but never on both at once."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from sidecar.commands.stopping import unless_stopped
from sidecar.commands.sweep.client import Client, Sample
from sidecar.commands.sweep.counters import CounterReader, growth, served_others
from sidecar.commands.sweep.measured import LevelResult, Measured, SweepResult, together
from sidecar.commands.sweep.options import MOST_AT_ONCE, SweepOptions
from sidecar.commands.sweep.workload import Level
from sidecar.engine.page_source import page_source
from sidecar.errors import MeasurementError

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


_WARMING_UP: Final = 8  # concurrent requests

_Rounds = Mapping[Level, Sequence[Sequence[Measured]]]
"""By level and server."""


async def sweep(options: SweepOptions, stop: asyncio.Event, on_end: Callable[[str], None]) -> SweepResult:
    """Measures all levels, or those it reaches before ``stop`` is set; sets ``stop`` itself after ``options.seconds``.

    Each round of a level is followed by the baseline's, so that a drift affects both. ``on_end`` is called after each
    request with the level that is being measured.

    Raises:
        MeasurementError: a server does not answer like an OpenAI-style one, or answers no request at all; or the
            baseline speculates.
    """
    timer = asyncio.get_running_loop().call_later(options.seconds, stop.set)
    rounds: dict[Level, list[list[Measured]]] = defaultdict(lambda: [[] for _ in options.servers])
    try:
        async with AsyncExitStack() as stack:
            servers = await unless_stopped(_ready(stack, options), stop) or []
            for level in options.levels * options.rounds:
                for place, server in enumerate(servers):
                    if not stop.is_set():
                        rounds[level][place].append(await measure(server, level, options, stop, on_end))
            return _result(options, [server.client for server in servers], rounds)
    finally:
        timer.cancel()


async def _ready(stack: AsyncExitStack, options: SweepOptions) -> list[Server]:
    """Connects to the server to measure and to its baseline, if there is one, and warms them up.

    Raises:
        MeasurementError: the first request fails, or the baseline speculates.
    """
    servers = [await _server(stack, url, options) for url in options.servers]
    for baseline in servers[1:]:
        page = await baseline.counters.read()
        if page is not None and page.speculates:
            raise MeasurementError(f"{baseline.client.name} speculates; --baseline-url is a vLLM without speculation")
    for server in servers:
        await _warm_up(server.client, options)
    return servers


async def _server(stack: AsyncExitStack, url: str, options: SweepOptions) -> Server:
    client = await stack.enter_async_context(Client(url, options.requests))
    await client.connect(options.requests.prompts[0])
    scrape = options.settings.model_copy(update={"vllm_url": url.rstrip("/").removesuffix("/v1")})
    source = await stack.enter_async_context(page_source(scrape, scrape.limits))
    return Server(client, CounterReader(source, client.model))  # the baseline may be served under another name


async def _warm_up(client: Client, options: SweepOptions) -> None:
    """Sends each prompt once, for one token, so that every level finds the same prefixes cached."""
    gate = asyncio.Semaphore(_WARMING_UP)

    async def ask(prompt: str) -> None:
        async with gate:
            await client.ask(prompt, 0.0, max_tokens=1)

    await asyncio.gather(*map(ask, options.requests.prompts[1 : options.count]))


def _result(options: SweepOptions, clients: Sequence[Client], rounds: _Rounds) -> SweepResult:
    """Everything that was measured."""
    joined = {level: [together(parts) for parts in servers if parts] for level, servers in rounds.items()}
    levels = tuple(
        LevelResult(level=level, speculating=first, baseline=baseline[0] if baseline else None)
        for level, (first, *baseline) in joined.items()
    )
    measured = sum(len(parts) for servers in rounds.values() for parts in servers)
    failed = any(one.failed for servers in joined.values() for one in servers)
    return SweepResult(
        model=clients[0].model if clients else options.requests.model,
        max_tokens=options.requests.max_tokens,
        rounds=options.rounds,
        complete=measured * options.count == options.total and all(one.complete for one in levels),
        faults={client.name: client.last_fault for client in clients if client.last_fault} if failed else {},
        levels=levels,
    )
