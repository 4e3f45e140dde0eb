"""Measures a sweep of one vLLM, or of two that take turns.

Each round goes through all levels, so that a drift of the machine affects all of them.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import zip_longest
from typing import Final
from uuid import uuid4

from sidecar.analysis.evidence import Acceptance
from sidecar.analysis.speed.steps import counter_growth
from sidecar.commands.waiting import unless_stopped
from sidecar.engine.merge import merge
from sidecar.engine.names import SPECULATION, Counter, Gauge
from sidecar.engine.page_source import PageSource, page_source
from sidecar.engine.restarts import RestartDetector, fell
from sidecar.engine.snapshot import EngineSnapshot
from sidecar.errors import ScrapeError
from sidecar.settings import Settings
from specdec_tools.measuring.client import Client, Sample
from specdec_tools.measuring.sweep_result import LevelResult, Measurement, SweepLevel, SweepResult
from specdec_tools.measuring.templates import template_numbers
from specdec_tools.measuring.workload import RequestOptions

_AFTER_FAILURE: Final = 0.1  # seconds, so as not to hammer a server that is down
_BETWEEN_READINGS: Final = 0.2  # seconds
_MOST_READINGS: Final = 10
# A larger share of output tokens that are not in the replies is due to other clients.
_OTHERS: Final = 0.01
_WARMING_UP: Final = 8  # concurrent requests


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """``count`` requests per level and round of the vLLM at ``url``.

    After ``seconds`` the sweep ends with what it has measured. ``settings`` are for reading vLLM's
    pages.
    """

    url: str
    requests: RequestOptions
    levels: tuple[SweepLevel, ...]
    count: int
    rounds: int
    seconds: float
    settings: Settings


async def measure_sweep(
    options: SweepOptions, stop: asyncio.Event, on_begin: Callable[[int, SweepLevel], None]
) -> SweepResult:
    """Measures all levels of the vLLM at ``options.url``, as ``measure_in_turns``."""
    (result,) = await measure_in_turns(options, (options.url,), stop, on_begin)
    return result


async def measure_in_turns(
    options: SweepOptions,
    urls: Sequence[str],
    stop: asyncio.Event,
    on_begin: Callable[[int, SweepLevel], None],
    *,
    one_machine: bool = False,
) -> tuple[SweepResult, ...]:
    """Measures all levels of each vLLM, or those it reaches before ``stop`` is set.

    Each round of a level asks several servers in both orders, one after the other and back, and
    every other round goes through levels and servers backwards: what drifts steadily meets all of
    them alike.

    Sets ``stop`` itself after ``options.seconds``. Calls ``on_begin`` before each round of a level,
    with the number of those before it.

    Raises:
        MeasurementError: a server does not answer like an OpenAI-style one, or not at all.
    """
    timer = asyncio.get_running_loop().call_later(options.seconds, stop.set)
    try:
        async with AsyncExitStack() as stack:
            sweeps = [await _opened(stack, options, url, stop) for url in urls]
            for sweep in sweeps:
                await unless_stopped(sweep.warm_up(), stop)
            for ended, (level, servers) in enumerate(_turns(options, sweeps)):
                if not stop.is_set():
                    on_begin(ended, level)
                await _measure_round(level, servers)
            reached_end = not stop.is_set()
    finally:
        timer.cancel()

    turns = uuid4().hex if len(urls) > 1 else None
    common = _common_rounds(sweeps)
    return tuple(
        sweep.result(common, turns, reached_end=reached_end, one_machine=one_machine)
        for sweep in sweeps
    )


async def _measure_round(level: SweepLevel, servers: Sequence["_Sweep"]) -> None:
    """Measures a round of a level; one that is cut short is kept only if it is the first."""
    order = [*servers, *servers[::-1]] if len(servers) > 1 else servers
    parts: dict[int, list[Measurement]] = defaultdict(list)
    for sweep in order:
        if not sweep.stop.is_set():
            parts[id(sweep)].append(await sweep.measure(level))

    for sweep in servers:
        measured = tuple(parts[id(sweep)])
        if measured and (not sweep.stop.is_set() or not sweep.rounds[level]):
            sweep.rounds[level].append(LevelResult(level=level, rounds=measured).whole)


async def _opened(
    stack: AsyncExitStack, options: SweepOptions, url: str, stop: asyncio.Event
) -> "_Sweep":
    address = url.rstrip("/").removesuffix("/v1")
    settings = options.settings.model_copy(update={"vllm_url": address})
    client = await stack.enter_async_context(Client(url, options.requests))
    source = await stack.enter_async_context(page_source(settings, settings.limits))
    return _Sweep(options, client, source, stop, defaultdict(list))


def _turns(
    options: SweepOptions, sweeps: Sequence["_Sweep"]
) -> Iterator[tuple[SweepLevel, Sequence["_Sweep"]]]:
    """The levels in the order in which they are measured, each with the order of the servers."""
    for number in range(options.rounds):
        step = -1 if number % 2 else 1
        for level in options.levels[::step]:
            yield level, sweeps[::step]


def _common_rounds(sweeps: Sequence["_Sweep"]) -> Mapping[SweepLevel, int]:
    """How many rounds of each level all servers have."""
    first, *_ = sweeps
    common = {}
    for level in first.rounds:
        common[level] = min(len(sweep.rounds[level]) for sweep in sweeps)
    return common


@dataclass(frozen=True, slots=True)
class _Sweep:
    """A server's sweep in progress, with the rounds so far.

    Requests go to ``client``, and ``source`` has vLLM's counters.
    """

    options: SweepOptions
    client: Client
    source: PageSource
    stop: asyncio.Event
    rounds: dict[SweepLevel, list[Measurement]]
    restarts: RestartDetector = field(default_factory=RestartDetector)

    def result(
        self,
        common: Mapping[SweepLevel, int],
        turns: str | None,
        *,
        reached_end: bool,
        one_machine: bool,
    ) -> SweepResult:
        """What was measured, with so many rounds of each level."""
        levels = tuple(
            LevelResult(level=level, rounds=tuple(self.rounds[level][:number]))
            for level, number in common.items()
            if number
        )

        sent = self.options.requests
        return SweepResult(
            model=self.client.model or None,
            prompts=sha256(repr(sent.prompts).encode()).hexdigest(),
            requests=self.options.count,
            endpoint=sent.endpoint,
            extra_body=json.dumps(sent.extra_body, sort_keys=True),
            max_tokens=sent.max_tokens,
            rounds=self.options.rounds,
            complete=reached_end and all(level.whole.samples for level in levels),
            fault=self.client.last_fault or None,
            turns=turns,
            one_machine=one_machine,
            levels=levels,
        )

    async def warm_up(self) -> None:
        """Connects, and sends each prompt once, for one token.

        So every level finds the same prefixes cached.

        Raises:
            MeasurementError: the first request fails.
        """
        first, *others = self.options.requests.prompts[: self.options.count]
        await self.client.connect(first)

        async def ask(number: int) -> None:
            await self.client.ask(others[number], 0.0, max_tokens=1)

        await _send(_WARMING_UP, len(others), ask)

    async def measure(self, level: SweepLevel) -> Measurement:
        """One round of a level, as far as it gets before ``stop``."""
        before = await self._settled()
        prompts = self.options.requests.prompts
        numbers = template_numbers(prompts)
        asked = level.requests(self.options.count)
        ended: list[Sample | None] = []  # None for a request that failed
        begun = time.monotonic()

        async def ask(place: int) -> None:
            number, temperature = asked[place]
            prompt = prompts[number % len(prompts)]
            sample = await self.client.ask(prompt, temperature)
            if sample is None:
                ended.append(None)
                await asyncio.sleep(_AFTER_FAILURE)
            else:
                ended.append(sample._replace(prompt=numbers[prompt]))

        await unless_stopped(_send(level.concurrency, len(asked), ask), self.stop)
        seconds = time.monotonic() - begun
        after = await self._settled()
        samples = tuple(sample for sample in ended if sample is not None)
        grown = _growth(before, after)
        tokens = [sample.tokens for sample in samples]
        others = _is_busy(before) or _is_busy(after)
        if len(samples) == len(asked) and None not in tokens:
            others |= grown.get(Counter.GENERATION_TOKENS, 0.0) > (1 + _OTHERS) * sum(
                filter(None, tokens)
            )

        cache = {} if others else grown
        return Measurement(
            samples=samples,
            failed=ended.count(None),
            seconds=seconds,
            others=others,
            counted=_counted(before, after, grown),
            queries=cache.get(Counter.PREFIX_CACHE_QUERIES),
            hits=cache.get(Counter.PREFIX_CACHE_HITS),
            preemptions=cache.get(Counter.PREEMPTIONS),
            capacity_tokens=None if after is None else after.kv_cache_capacity_tokens,
        )

    async def _settled(self) -> EngineSnapshot | None:
        """The engines' counters once they are idle and no counter changes, or after two seconds.

        vLLM counts a step shortly after it has sent the step's tokens.
        """
        engine = await self._read()
        for _ in range(_MOST_READINGS):
            if engine is None:
                return None
            await asyncio.sleep(_BETWEEN_READINGS)
            before = engine
            engine = await self._read()
            if engine is not None and engine.counters == before.counters and not _is_busy(engine):
                break

        return engine

    async def _read(self) -> EngineSnapshot | None:
        """All engines of the client's model as one, as they are now; None without a page."""
        try:
            page = await self.source.next()
            self.restarts.detect(page)
        except ScrapeError:
            return None

        engines = page.engines
        if len({engine.key.model_name for engine in engines}) > 1:
            engines = tuple(
                engine for engine in engines if engine.key.model_name == self.client.model
            )

        return merge(engines)


async def _send(concurrency: int, requests: int, ask: Callable[[int], Awaitable[None]]) -> None:
    """Sends the next request whenever one ends, so that ``concurrency`` are in flight."""
    numbers = iter(range(requests))

    async def send() -> None:
        for number in numbers:
            await ask(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(send())


def _growth(before: EngineSnapshot | None, after: EngineSnapshot | None) -> Mapping[Counter, float]:
    """How much vLLM's counters grew; empty without both pages or if vLLM restarted in between."""
    if before is None or after is None or fell(before, after):
        return {}
    return counter_growth(before.counters, after.counters, has_restarted=False)


def _counted(
    before: EngineSnapshot | None, after: EngineSnapshot | None, grown: Mapping[Counter, float]
) -> Acceptance | None:
    """What vLLM's speculation counters say, if they are usable."""
    if before is None or after is None or after.traits or not grown.keys() >= set(SPECULATION):
        return None

    drafts, draft_tokens, accepted_tokens = (grown[counter] for counter in SPECULATION)
    pairs = zip_longest(before.accepted_per_position, after.accepted_per_position, fillvalue=0.0)
    return Acceptance(
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted_tokens,
        accepted_per_position=tuple(new - old for old, new in pairs),
    )


def _is_busy(engine: EngineSnapshot | None) -> bool:
    """Whether it has requests. None of ours is in flight at a reading."""
    gauges = {} if engine is None else engine.gauges
    return any(
        gauges.get(gauge, 0) > 0 for gauge in (Gauge.REQUESTS_RUNNING, Gauge.REQUESTS_WAITING)
    )
