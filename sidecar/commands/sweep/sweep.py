"""The whole sweep: level after level, also on the baseline if there is one, but never on both at once."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final

from sidecar.commands.stopping import unless_stopped
from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.counters import CounterReader
from sidecar.commands.sweep.level import Measured, Task, measure, together
from sidecar.commands.sweep.mixing import mix_checks
from sidecar.commands.sweep.options import CAPACITY_AT_ONCE, Level, Load, SweepOptions, Workload
from sidecar.commands.sweep.results import SweepResult
from sidecar.commands.sweep.summary import level_summary, temperature_summary
from sidecar.engine.fetch import Fetcher, FetchOptions
from sidecar.engine.page_source import PageSource

_WARMING_UP: Final = 8  # requests at once
_PAGE_SECONDS: Final = 5.0

OnEnd = Callable[[str], None]
"""Called after each request with what is being measured."""


@dataclass(frozen=True, slots=True)
class _Server:
    client: Client
    counters: CounterReader


async def sweep(options: SweepOptions, prompts: Sequence[str], stop: asyncio.Event, on_end: OnEnd) -> SweepResult:
    """Measures all levels, or those it reaches before ``stop`` is set; ``options.seconds`` sets it too.

    Raises:
        MeasurementError: a server does not answer like an OpenAI-style one, or answers no request at all.
    """
    timer = asyncio.get_running_loop().call_later(options.seconds, stop.set)
    try:
        async with AsyncExitStack() as stack:
            servers = await unless_stopped(_ready(stack, options, prompts), stop) or []
            levels = _Levels(options, prompts, stop, on_end)
            if servers:
                await levels.run(*servers)
            return _result(servers, levels, options)
    finally:
        timer.cancel()


async def _ready(stack: AsyncExitStack, options: SweepOptions, prompts: Sequence[str]) -> list[_Server]:
    """The server to measure and its baseline, if there is one, found and warmed up."""
    asked = {"--url": options.url, "--baseline-url": options.baseline_url}
    return [
        await _server(stack, argument, url, options, prompts[: options.requests])
        for argument, url in asked.items()
        if url is not None
    ]


async def _server(
    stack: AsyncExitStack, argument: str, url: str, options: SweepOptions, prompts: Sequence[str]
) -> _Server:
    """Asks each prompt once, for one token, so that every level finds the same prefixes cached.

    Raises:
        MeasurementError: the first request fails.
    """
    client = await stack.enter_async_context(Client(argument, url, options))
    await client.connect(prompts[0])
    gate = asyncio.Semaphore(_WARMING_UP)
    temperature = options.workloads[0].weights[0][0]

    async def ask(prompt: str) -> None:
        async with gate:
            await client.ask(prompt, temperature, 1)

    await asyncio.gather(*map(ask, prompts[1:]))
    fetcher = Fetcher(url.rstrip("/").removesuffix("/v1"), FetchOptions(timeout=_PAGE_SECONDS, tls=options.tls))
    stack.push_async_callback(fetcher.close)
    # The baseline may be served under another name.
    return _Server(client, CounterReader(PageSource(fetcher, options.page_limits, filtered=True), client.model))


class _Levels:
    """Runs level after level."""

    def __init__(self, options: SweepOptions, prompts: Sequence[str], stop: asyncio.Event, on_end: OnEnd) -> None:
        self._options = options
        self._prompts = prompts
        self._stop = stop
        self._on_end = on_end
        self.capacity: float | None = None
        self._found: dict[Level, list[Measured]] = {}
        self._baseline: dict[Level, list[Measured]] = {}

    async def run(self, target: _Server, baseline: _Server | None = None) -> None:
        """Each level with the baseline's right after it, so that a drift affects both."""
        if self._options.capacity_requests:
            await self._measure_capacity(target)
        for level in self._options.levels(self.capacity) * self._options.rounds:
            if self._stop.is_set() or (level.load.at_once is None and level.load.rate is None):
                break
            found = await self._on(target, level, self._options.requests)
            self._found.setdefault(level, []).append(found)
            if baseline is not None and not self._stop.is_set():
                other = await self._on(baseline, level, self._options.requests)
                self._baseline.setdefault(level, []).append(other)

    @property
    def is_through(self) -> bool:
        """Whether each level that was begun was measured in every round, on both servers."""
        lists = [*self._found.values(), *self._baseline.values()]
        return all(len(parts) == self._options.rounds for parts in lists)

    @property
    def pairs(self) -> list[tuple[Measured, Measured | None]]:
        """What was measured of each level, all rounds together, and the same of the baseline."""
        return [
            (together(parts), together(self._baseline[level]) if level in self._baseline else None)
            for level, parts in self._found.items()
        ]

    async def _measure_capacity(self, target: _Server) -> None:
        """The requests per second that the server completes with 32 in flight, of all temperatures in equal parts."""
        alone = [one.temperature for one in self._options.workloads if one.temperature is not None]
        level = Level(Workload(tuple((temperature, 1.0) for temperature in alone)), Load(at_once=CAPACITY_AT_ONCE))
        found = await self._on(target, level, self._options.capacity_requests)
        if found.complete and found.samples:
            self.capacity = len(found.samples) / found.seconds

    async def _on(self, server: _Server, level: Level, requests: int) -> Measured:
        task = Task(
            prompts=self._prompts,
            requests=requests,
            max_tokens=self._options.max_tokens,
            stop=self._stop,
            on_end=partial(self._on_end, str(level)),
        )
        return await measure(server.client, server.counters, level, task)


def _result(servers: Sequence[_Server], done: _Levels, options: SweepOptions) -> SweepResult:
    pairs = done.pairs
    summaries = tuple(level_summary(found, other, options.thresholds) for found, other in pairs)
    temperatures = []
    alone = [(summary, pair[0]) for summary, pair in zip(summaries, pairs, strict=True) if summary.mix is None]
    for _, group in groupby(alone, key=lambda pair: pair[0].temperature):
        levels, measured = zip(*group, strict=True)
        temperatures.append(temperature_summary(levels, measured, options.thresholds))
    complete = (
        done.is_through
        and len(summaries) == len(options.levels(done.capacity))
        and all(
            summary.complete and (options.baseline_url is None or summary.baseline is not None) for summary in summaries
        )
    )
    failed = any(measured.failed for pair in pairs for measured in pair if measured is not None)
    faults = {server.client.argument: server.client.last_fault for server in servers if server.client.last_fault}
    return SweepResult(
        model=servers[0].client.model if servers else options.model,
        max_tokens=options.max_tokens,
        rounds=options.rounds,
        complete=complete,
        capacity=done.capacity,
        faults=faults if failed else {},
        temperatures=tuple(temperatures),
        mixes=mix_checks(summaries),
        levels=summaries,
    )
