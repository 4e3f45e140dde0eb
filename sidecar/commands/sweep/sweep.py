"""The whole sweep: level after level, also on the baseline if there is one, but never on both at once."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from sidecar.commands.stopping import unless_stopped
from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.counters import CounterReader
from sidecar.commands.sweep.level import Measured, Server, Task, measure, together
from sidecar.commands.sweep.mixing import mix_results
from sidecar.commands.sweep.options import CAPACITY_AT_ONCE, SweepOptions
from sidecar.commands.sweep.results import SweepResult
from sidecar.commands.sweep.summary import level_result, temperature_result
from sidecar.commands.sweep.workload import Level, Load, Workload
from sidecar.engine.fetch import Fetcher
from sidecar.engine.page_source import PageSource

_WARMING_UP: Final = 8  # requests at once
_PAGE_SECONDS: Final = 5.0

OnEnd = Callable[[str], None]
"""Called after each request with what is being measured."""


async def sweep(options: SweepOptions, prompts: Sequence[str], stop: asyncio.Event, on_end: OnEnd) -> SweepResult:
    """Measures all levels, or those it reaches before ``stop`` is set; ``options.seconds`` sets it too.

    Raises:
        MeasurementError: a server does not answer like an OpenAI-style one, or answers no request at all.
    """
    timer = asyncio.get_running_loop().call_later(options.seconds, stop.set)
    try:
        async with AsyncExitStack() as stack:
            servers = await unless_stopped(_ready(stack, options, prompts), stop) or []
            done = _Sweep(options, prompts, stop, on_end, servers)
            await done.run()
            return done.result()
    finally:
        timer.cancel()


async def _ready(stack: AsyncExitStack, options: SweepOptions, prompts: Sequence[str]) -> list[Server]:
    """The server to measure and its baseline, if there is one, found and warmed up."""
    asked = {"--url": options.url, "--baseline-url": options.baseline_url}
    return [
        await _server(stack, argument, url, options, prompts[: options.count])
        for argument, url in asked.items()
        if url is not None
    ]


async def _server(
    stack: AsyncExitStack, argument: str, url: str, options: SweepOptions, prompts: Sequence[str]
) -> Server:
    """Asks each prompt once, for one token, so that every level finds the same prefixes cached.

    Raises:
        MeasurementError: the first request fails.
    """
    client = await stack.enter_async_context(Client(argument, url, options.requests))
    await client.connect(prompts[0])
    gate = asyncio.Semaphore(_WARMING_UP)
    temperature = options.workloads[0].weights[0][0]

    async def ask(prompt: str) -> None:
        async with gate:
            await client.ask(prompt, temperature, max_tokens=1)

    await asyncio.gather(*map(ask, prompts[1:]))
    page = url.rstrip("/").removesuffix("/v1")
    fetcher = Fetcher(page, timeout=_PAGE_SECONDS, tls=options.requests.tls)
    stack.push_async_callback(fetcher.close)
    # The baseline may be served under another name.
    return Server(client, CounterReader(PageSource(fetcher, options.page_limits, filtered=True), client.model))


class _Sweep:
    """Runs level after level; ``servers`` are the one to measure and its baseline, or none if it was stopped."""

    def __init__(
        self,
        options: SweepOptions,
        prompts: Sequence[str],
        stop: asyncio.Event,
        on_end: OnEnd,
        servers: Sequence[Server],
    ) -> None:
        self._options = options
        self._prompts = prompts
        self._stop = stop
        self._on_end = on_end
        self._servers = servers
        self._capacity: float | None = None
        self._found: dict[Level, list[list[Measured]]] = {}  # the rounds, by server

    async def run(self) -> None:
        """Each level with the baseline's right after it, so that a drift affects both."""
        options = self._options
        if options.capacity_requests and self._servers:
            await self._measure_capacity()
        for level in options.levels(self._capacity) * options.rounds:
            if level.load.at_once is None and level.load.rate is None:
                break  # a share of a capacity that was not measured
            for number, server in enumerate(self._servers):
                if not self._stop.is_set():
                    rounds = self._found.setdefault(level, [[] for _ in self._servers])
                    rounds[number].append(await self._on(server, level, options.count))

    async def _measure_capacity(self) -> None:
        """The requests per second that the server completes with 32 in flight, of all temperatures in equal parts."""
        alone = [one.temperature for one in self._options.workloads if one.temperature is not None]
        level = Level(Workload(tuple((temperature, 1.0) for temperature in alone)), Load(at_once=CAPACITY_AT_ONCE))
        found = await self._on(self._servers[0], level, self._options.capacity_requests)
        if found.complete and found.samples:
            self._capacity = len(found.samples) / found.seconds

    async def _on(self, server: Server, level: Level, requests: int) -> Measured:
        on_end = partial(self._on_end, str(level))
        return await measure(
            server, level, Task(prompts=self._prompts, requests=requests, stop=self._stop, on_end=on_end)
        )

    def result(self) -> SweepResult:
        """Everything that was measured so far."""
        options, clients = self._options, [server.client for server in self._servers]
        measured = {level: [together(rounds) for rounds in servers if rounds] for level, servers in self._found.items()}
        levels = tuple(
            level_result(first, baseline[0] if baseline else None, options.thresholds)
            for first, *baseline in measured.values()
        )
        alone = dict.fromkeys(one for one in (level.workload for level in measured) if one.temperature is not None)
        all_rounds = all(len(rounds) == options.rounds for servers in self._found.values() for rounds in servers)
        failed = any(one.failed for servers in measured.values() for one in servers)
        return SweepResult(
            model=clients[0].model if clients else options.requests.model,
            max_tokens=options.requests.max_tokens,
            rounds=options.rounds,
            complete=all_rounds
            and len(levels) == len(options.levels(self._capacity))
            and all(one.complete for one in levels),
            capacity=self._capacity,
            faults={client.argument: client.last_fault for client in clients if client.last_fault} if failed else {},
            temperatures=tuple(
                temperature_result(
                    [one for one in levels if one.level.workload == workload],
                    [first for level, (first, *_) in measured.items() if level.workload == workload],
                    options.thresholds,
                )
                for workload in alone
            ),
            mixes=mix_results(levels),
            levels=levels,
        )
