"""Measures a sweep: level by level, also on the baseline if there is one, but never on both at once."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from typing import Any, Final

from sidecar.analysis.evidence import Acceptance
from sidecar.analysis.speed.steps import counter_growth
from sidecar.commands.load.client import Client, Sample
from sidecar.commands.load.sweep_result import LevelMeasurement, LevelResult, SweepResult, joined
from sidecar.commands.load.workload import MOST_AT_ONCE, RequestOptions, SweepLevel
from sidecar.commands.waiting import unless_stopped
from sidecar.engine.merge import fell, merge
from sidecar.engine.names import SPECULATION, Counter, Gauge
from sidecar.engine.page_source import PageSource, page_source
from sidecar.engine.snapshot import EngineSnapshot
from sidecar.errors import MeasurementError, ScrapeError
from sidecar.settings import Settings

_AFTER_FAILURE: Final = 0.1  # seconds, so as not to hammer a server that is down
_BETWEEN_READINGS: Final = 0.2  # seconds
_MOST_READINGS: Final = 10
_OTHERS: Final = 0.01  # share of output tokens by which counters and replies may differ
_WARMING_UP: Final = 8  # concurrent requests

_Rounds = Mapping[SweepLevel, Sequence[Sequence[LevelMeasurement]]]
"""By level and server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """``count`` requests per level and round; every round goes through all levels.

    ``servers`` are the addresses of the server to measure and of its baseline, if there is one. After ``seconds`` the
    sweep ends with what it has measured. ``settings`` are for reading vLLM's pages.
    """

    servers: tuple[str, ...]
    requests: RequestOptions
    levels: tuple[SweepLevel, ...]
    count: int
    rounds: int
    seconds: float
    settings: Settings

    @property
    def total(self) -> int:
        """Requests of the whole sweep, without the warm-up."""
        return len(self.levels) * self.count * self.rounds * len(self.servers)


@dataclass(frozen=True, slots=True)
class Server:
    """A server to measure: it takes requests and shows its counters."""

    client: Client
    source: PageSource

    async def read(self) -> EngineSnapshot | None:
        """All engines of the client's model as one, as they are now; None without a page."""
        try:
            engines = (await self.source.next()).engines
        except ScrapeError:
            return None
        if len({engine.key.model_name for engine in engines}) > 1:
            engines = tuple(engine for engine in engines if engine.key.model_name == self.client.model)
        return merge(engines)

    async def settled(self) -> EngineSnapshot | None:
        """The same, once they are idle and no counter changes, or after two seconds.

        vLLM counts a step shortly after it has sent the step's tokens.
        """
        engine = await self.read()
        for _ in range(_MOST_READINGS):
            if engine is None:
                return None
            await asyncio.sleep(_BETWEEN_READINGS)
            before, engine = engine, await self.read()
            if engine is not None and engine.counters == before.counters and not _is_busy(engine):
                break
        return engine


async def measure_sweep(options: SweepOptions, stop: asyncio.Event, on_end: Callable[[str], None]) -> SweepResult:
    """Measures all levels, or those it reaches before ``stop`` is set; sets ``stop`` itself after ``options.seconds``.

    Each round of a level is followed by the baseline's, so that a drift affects both. ``on_end`` is called after each
    request with the level that is being measured.

    Raises:
        MeasurementError: a server does not answer like an OpenAI-style one, or answers no request at all; or the
            baseline speculates.
    """
    timer = asyncio.get_running_loop().call_later(options.seconds, stop.set)
    rounds: dict[SweepLevel, list[list[LevelMeasurement]]] = defaultdict(lambda: [[] for _ in options.servers])
    try:
        async with AsyncExitStack() as stack:
            servers = await unless_stopped(_ready(stack, options), stop) or []
            for level in options.levels * options.rounds:
                for place, server in enumerate(servers):
                    if not stop.is_set():
                        rounds[level][place].append(await _measure_level(server, level, options, stop, on_end))
            return _result(options, [server.client for server in servers], rounds, reached_end=not stop.is_set())
    finally:
        timer.cancel()


async def _ready(stack: AsyncExitStack, options: SweepOptions) -> list[Server]:
    """Connects to the server to measure and to its baseline, if there is one, and warms them up.

    Raises:
        MeasurementError: the first request fails, or the baseline speculates.
    """
    servers = []
    for url in options.servers:
        client = await stack.enter_async_context(Client(url, options.requests))
        await client.connect(options.requests.prompts[0])
        scrape = options.settings.model_copy(update={"vllm_url": url.rstrip("/").removesuffix("/v1")})
        servers.append(Server(client, await stack.enter_async_context(page_source(scrape, scrape.limits))))
    for baseline in servers[1:]:
        page = await baseline.read()
        if page is not None and page.speculates:
            raise MeasurementError(f"{baseline.client.name} speculates; --baseline-url is a vLLM without speculation")
    for server in servers:
        await _warm_up(server.client, options)
    return servers


async def _warm_up(client: Client, options: SweepOptions) -> None:
    """Sends each prompt once, for one token, so that every level finds the same prefixes cached."""
    gate = asyncio.Semaphore(_WARMING_UP)

    async def ask(prompt: str) -> None:
        async with gate:
            await client.ask(prompt, 0.0, max_tokens=1)

    await asyncio.gather(*map(ask, options.requests.prompts[1 : options.count]))


async def _measure_level(
    server: Server, level: SweepLevel, options: SweepOptions, stop: asyncio.Event, on_end: Callable[[str], None]
) -> LevelMeasurement:
    """One round of a level, as far as it got before ``stop``; calls ``on_end`` after each request."""
    before = await server.settled()
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
    after = await server.settled()
    samples = tuple(sample for sample in ended if sample is not None)
    ours = [sample.tokens for sample in samples] if len(samples) == options.count else None
    return LevelMeasurement(
        samples=samples,
        failed=ended.count(None),
        seconds=seconds,
        counted=_counted_between(before, after),
        others=_served_others(before, after, ours),
        complete=len(ended) == options.count,
        **_cache_between(before, after),
    )


async def _send(level: SweepLevel, requests: int, ask: Callable[[int, float], Awaitable[None]]) -> None:
    """Sends each request when it is due and has a slot; an open loop has slots even if the server falls behind."""
    slots = asyncio.Semaphore(level.load.at_once or MOST_AT_ONCE)
    clock = asyncio.get_running_loop().time
    begun = clock()

    async def send(number: int, temperature: float) -> None:
        try:
            await ask(number, temperature)
        finally:
            slots.release()

    async with asyncio.TaskGroup() as group:
        requested = zip(level.load.arrivals(requests), level.workload.spread(requests), strict=True)
        for number, (due, temperature) in enumerate(requested):
            await asyncio.sleep(max(0.0, begun + due - clock()))
            await slots.acquire()
            group.create_task(send(number, temperature))


def _cache_between(before: EngineSnapshot | None, after: EngineSnapshot | None) -> dict[str, Any]:
    """What the KV cache did meanwhile, as far as vLLM's page says."""
    if before is None or after is None or fell(before, after):
        return {}
    grown = counter_growth(before.counters, after.counters, has_restarted=False)
    hits, queries = (grown.get(counter) for counter in (Counter.PREFIX_CACHE_HITS, Counter.PREFIX_CACHE_QUERIES))
    return {
        "cached": () if hits is None or queries is None else ((hits, queries),),
        "preemptions": grown.get(Counter.PREEMPTIONS),
        "capacity_tokens": after.kv_cache_capacity_tokens,
    }


def _counted_between(before: EngineSnapshot | None, after: EngineSnapshot | None) -> Acceptance | None:
    """How much vLLM's speculation counters grew; None without usable counters or if vLLM restarted in between."""
    if before is None or after is None or after.traits:
        return None
    if any(counter not in engine.counters for engine in (before, after) for counter in SPECULATION):
        return None
    drafts, draft_tokens, accepted = (after.counters[counter] - before.counters[counter] for counter in SPECULATION)
    pairs = zip_longest(before.accepted_per_position, after.accepted_per_position, fillvalue=0.0)
    positions = tuple(new - old for old, new in pairs)
    if min(drafts, draft_tokens, accepted, *positions) < 0:
        return None
    return Acceptance(
        drafts=drafts, draft_tokens=draft_tokens, accepted_tokens=accepted, accepted_per_position=positions
    )


def _served_others(
    before: EngineSnapshot | None, after: EngineSnapshot | None, ours: Sequence[int | None] | None
) -> bool:
    """Whether vLLM also served other clients; ``ours`` are a level's output tokens, None if not all requests completed.

    None of our requests is in flight at either reading.
    """
    if before is None or after is None:
        return False
    if _is_busy(before) or _is_busy(after):
        return True
    old, new = (engine.counters.get(Counter.GENERATION_TOKENS) for engine in (before, after))
    if ours is None or None in ours or old is None or new is None:
        return False
    return new - old > (1 + _OTHERS) * sum(filter(None, ours))


def _is_busy(engine: EngineSnapshot) -> bool:
    return any(engine.gauges.get(gauge, 0) > 0 for gauge in (Gauge.REQUESTS_RUNNING, Gauge.REQUESTS_WAITING))


def _result(options: SweepOptions, clients: Sequence[Client], rounds: _Rounds, *, reached_end: bool) -> SweepResult:
    levels, asked = [], options.requests
    for level, servers in rounds.items():
        first, *baseline = [joined(parts) for parts in servers if parts]
        levels.append(LevelResult(level=level, speculating=first, baseline=baseline[0] if baseline else None))
    return SweepResult(
        model=clients[0].model if clients else options.requests.model,
        max_tokens=options.requests.max_tokens,
        rounds=options.rounds,
        complete=reached_end and all(level.complete for level in levels),
        faults={client.name: client.last_fault for client in clients if client.last_fault},
        levels=tuple(levels),
        requests=sha256(repr((asked.prompts, asked.endpoint, options.count)).encode()).hexdigest()[:16],
    )
