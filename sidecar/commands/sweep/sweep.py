"""The whole sweep: level after level, on the baseline as well where there is one, never on both at once."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from sidecar.commands.stopping import unless_stopped
from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.counters import CounterReader
from sidecar.commands.sweep.level import Measured, Work, measure
from sidecar.commands.sweep.options import Level, SweepOptions
from sidecar.commands.sweep.summary import LevelSummary, TemperatureSummary, level_summary, temperature_summary
from sidecar.engine.fetch import Fetcher, FetchOptions
from sidecar.engine.page_source import PageSource
from sidecar.errors import SpecDecError
from sidecar.requests.record import Outcome

_WARMING_UP: Final = 8  # requests at once
_PAGE_SECONDS: Final = 5.0

Told = Callable[[Level, int], None]
"""Called with the level at work and how many requests have ended in all."""


class SweepError(SpecDecError):
    """Nothing can be measured; the message names the server and what it answered."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """``complete`` is False where the sweep was stopped, ran out of time, or a level got no answer at all.

    ``model`` is None where it ended before the server named one. ``faults`` has the last fault of each server, by
    the argument that named it, where requests failed.
    """

    model: str | None
    levels: tuple[LevelSummary, ...]
    temperatures: tuple[TemperatureSummary, ...]
    complete: bool
    faults: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Server:
    name: str
    client: Client
    counters: CounterReader
    model: str


async def sweep(options: SweepOptions, prompts: Sequence[str], stop: asyncio.Event, told: Told) -> SweepResult:
    """Measures all levels, or those that it comes to before ``stop`` is set; ``options.seconds`` sets it too.

    Raises:
        SweepError: a server does not answer as an OpenAI-style one, or answers no request at all.
    """
    timer = asyncio.get_running_loop().call_later(options.seconds, stop.set)
    try:
        async with AsyncExitStack() as stack:
            servers = await unless_stopped(_ready(stack, options, prompts), stop)
            levels = _Levels(options, prompts, stop, told)
            pairs = await levels.run(*servers) if servers is not None else []
            return _result(servers, pairs, options)
    finally:
        timer.cancel()


async def _ready(
    stack: AsyncExitStack, options: SweepOptions, prompts: Sequence[str]
) -> tuple["_Server", "_Server | None"]:
    """The server to measure and its baseline, found and warmed up."""
    target = await _server(stack, "--url", options.url, options)
    await _warm_up(target, prompts[: options.requests], options)
    if options.baseline_url is None:
        return target, None
    baseline = await _server(stack, "--baseline-url", options.baseline_url, options)
    await _warm_up(baseline, prompts[: options.requests], options)
    return target, baseline


async def _server(stack: AsyncExitStack, name: str, url: str, options: SweepOptions) -> _Server:
    client = await stack.enter_async_context(Client(url, options))
    # The baseline may be served under another name; one that is given is for both.
    model = options.model or await client.model()
    if model is None:
        raise SweepError(f"{name}: no model under /v1/models ({client.last_fault}); is it a vLLM? Or name one: --model")
    fetcher = Fetcher(url.rstrip("/").removesuffix("/v1"), FetchOptions(timeout=_PAGE_SECONDS, tls=options.tls))
    stack.push_async_callback(fetcher.close)
    return _Server(name, client, CounterReader(PageSource(fetcher, options.page_limits, filtered=True), model), model)


async def _warm_up(server: _Server, prompts: Sequence[str], options: SweepOptions) -> None:
    """Each prompt once, for one token, so that every level finds the same prefixes cached.

    Raises:
        SweepError: no request was answered.
    """
    gate = asyncio.Semaphore(_WARMING_UP)

    async def ask(prompt: str) -> bool:
        async with gate:
            record = await server.client.ask(server.model, prompt, options.temperatures[0], 1)
            return record.outcome is Outcome.COMPLETED

    if not await ask(prompts[0]):
        raise SweepError(f"{server.name}: a request for {server.model} failed: {server.client.last_fault}")
    await asyncio.gather(*map(ask, prompts[1:]))


class _Levels:
    """Runs level after level and counts what has ended."""

    def __init__(self, options: SweepOptions, prompts: Sequence[str], stop: asyncio.Event, told: Told) -> None:
        self._options = options
        self._prompts = prompts
        self._stop = stop
        self._told = told
        self._ended = 0

    async def run(self, target: _Server, baseline: _Server | None) -> list[tuple[Measured, Measured | None]]:
        """Each level that was begun, with the baseline's right after it, so that a drift hits both."""
        pairs: list[tuple[Measured, Measured | None]] = []
        for level in self._options.levels:
            if self._stop.is_set():
                break
            found = await self._on(target, level)
            other = None if baseline is None or self._stop.is_set() else await self._on(baseline, level)
            pairs.append((found, other))
        return pairs

    async def _on(self, server: _Server, level: Level) -> Measured:
        def one_more() -> None:
            self._ended += 1
            self._told(level, self._ended)

        options = self._options
        work = Work(server.model, self._prompts, options.requests, options.max_tokens, self._stop, one_more)
        return await measure(server.client, server.counters, level, work)


def _result(
    servers: tuple[_Server, _Server | None] | None,
    pairs: Sequence[tuple[Measured, Measured | None]],
    options: SweepOptions,
) -> SweepResult:
    summaries = tuple(level_summary(found, other) for found, other in pairs)
    by_level = {found.level: found for found, _ in pairs}
    temperatures = []
    for _, group in groupby(summaries, key=lambda summary: summary.level.temperature):
        levels = list(group)
        measured = [by_level[summary.level] for summary in levels]
        temperatures.append(temperature_summary(levels, measured, options.thresholds))
    complete = len(summaries) == len(options.levels) and all(
        summary.complete and (options.baseline_url is None or summary.baseline is not None) for summary in summaries
    )
    failed = any(measured.failed for pair in pairs for measured in pair if measured is not None)
    known = [server for server in servers or () if server is not None]
    return SweepResult(
        known[0].model if known else options.model,
        summaries,
        tuple(temperatures),
        complete,
        {server.name: server.client.last_fault for server in known if server.client.last_fault} if failed else {},
    )
