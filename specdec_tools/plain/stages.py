"""The stages of a baseline: every load with short and long prompts, cached and not."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, product
from math import ceil, floor, sqrt
from typing import Final

from sidecar.analysis.speed.plain import MIXED
from sidecar.engine.names import Counter
from sidecar.engine.page_source import PageSource
from sidecar.engine.scrape import Poller
from sidecar.errors import MeasurementError, ScrapeError
from sidecar.wording.numbers import duration
from specdec_tools.measuring.client import Client
from specdec_tools.measuring.workload import RequestOptions
from specdec_tools.plain.measured import BaselineRun, Slot

NO_PLUGIN: Final = (
    "--load needs the plug-in in this vLLM, which counts its steps: `specdec-sidecar plugin DIR`"
    " writes it, `PYTHONPATH=DIR SPECDEC_PLUGIN__SOCKET=PATH vllm serve MODEL` loads it, and"
    " --plugin-socket names the same PATH"
)
# Of everything, so that a drifting machine does not look like one that slows down under load; with
# fewer, how much it drifts would hardly be known.
_ROUNDS: Final = 6
_MOST_ROUNDS: Final = 12
_ROUNDING: Final = 0.01  # of a round
_OVER: Final = 1.1  # times the seconds that were asked for, which the last round may take it to
_LEAST_SLOT: Final = 5.0  # seconds, several of the plug-in's reports, if there is time for them
_TEMPERATURE: Final = 0.7  # plain decoding takes the same time at any temperature
_AFTER_FAILURE: Final = 0.5  # seconds
# Seconds within which a plug-in connects; it tries at least every ten.
_CONNECTING: Final = 20.0
# Of a slot, before it is measured: all clients prefill at its beginning.
_SETTLING: Final = 0.2
# Slots that the first prefill of repeated prompts may take, besides the slot itself.
_WARMING_UP: Final = 5
# The default of the long prompts, in tokens and in lengths of the prompts given.
_LONG_TOKENS: Final = 2048
_TIMES_AS_LONG: Final = 8
_COUNTED: Final = 4000  # characters of prompts whose tokens are counted
_LEAST_COUNTED: Final = 100
_SPARE: Final = 64  # tokens of a chat's template, and what a tokenizer makes of cut words
_OF_THE_CACHE: Final = 0.9
_LONGER: Final = 2  # outputs of repeated prompts: there are fewer prefills even without a cache


class Prompts:
    """The prompts given, brought to a length in characters."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given = given
        self._next = count()

    def cold(self, length: int | None) -> str:
        """A prompt that no cache has: it begins like no other."""
        number = next(self._next)
        return self._at_length(f"Number {number}. ", number, length)

    def warm(self, client: int, length: int | None) -> str:
        """A client's own prompt, the same each time."""
        return self._at_length(f"Client {client}. ", client, length)

    def _at_length(self, beginning: str, place: int, length: int | None) -> str:
        given = self._given[place % len(self._given)]
        if length is None:
            return beginning + given

        parts = [beginning, given]
        total = len(beginning) + len(given)
        while total < length:
            place += 1
            parts.append(self._given[place % len(self._given)])
            total += len(parts[-1]) + 1

        return " ".join(parts)[: max(length, len(beginning))]


@dataclass(frozen=True, slots=True)
class Stage:
    """One kind of requests; ``length`` is in characters, None: the prompts as they are."""

    at_once: int
    length: int | None
    tokens: int
    is_warm: bool


class Stages:
    """Sends requests to a vLLM, stage by stage, and polls it meanwhile."""

    def __init__(
        self,
        client: Client,
        options: RequestOptions,
        measured: BaselineRun,
        poller: Poller,
        source: PageSource,
    ) -> None:
        self._client = client
        self._options = options
        self._measured = measured
        self._poller = poller
        self._source = source
        self._prompts = Prompts(options.prompts)
        self._answered = self._failed = 0  # requests of the stage

    async def run(
        self, seconds: float, loads: Sequence[int], contexts: Sequence[int], error: float
    ) -> None:
        """Takes about ``seconds``, shared equally.

        It takes less if step times are known to within ``error``, relative and in two standard
        errors, after six rounds or any later one, and more only where it takes that long to fill
        the prefix cache in the first six. ``contexts`` are lengths of prompts in tokens. Without
        them, the prompts are sent as they are, and made long.

        Raises:
            MeasurementError: the server does not answer like an OpenAI-style one, or refuses all
                requests of a stage, no plug-in counts its steps, or it drafts.
        """
        await self._client.connect(self._options.prompts[0])
        await self._observed()
        stages = list(await self._stages(sorted(set(loads)), contexts))
        each = _slot_seconds(seconds, len(stages))
        rounds = floor(seconds / (each * len(stages)) + _ROUNDING)
        progress = Progress(seconds, each, len(stages), rounds)
        for number, stage in product(range(rounds), stages):
            may_end = stage is stages[0] and number >= _ROUNDS
            if may_end and (self._measured.error <= error or not progress.has_time):
                return
            cached = "repeated" if stage.is_warm else "new"
            what = f"concurrency {stage.at_once}, {cached} prompts of about {stage.tokens} tokens"
            print(f"{progress.step()}: {what}", file=sys.stderr)
            await self._stage(number, stage, each)
            # Each client's first one: where prompts take long, none may have been answered yet.
            if number == 0 and self._failed >= stage.at_once and not self._answered:
                raise MeasurementError(
                    f"{self._client.name}: no request with a prompt of about {stage.tokens} tokens"
                    f" succeeded: {self._client.last_fault}"
                )

    async def _observed(self) -> None:
        """Waits for the plug-in, which tries to connect while vLLM has something to do."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _CONNECTING
        while not self._measured.is_observed:
            if loop.time() > end:
                raise MeasurementError(f"{self._client.name}: {NO_PLUGIN}")
            await self._client.ask(self._options.prompts[0], _TEMPERATURE, max_tokens=1)
            await asyncio.sleep(_AFTER_FAILURE)

    async def _stages(self, loads: Sequence[int], contexts: Sequence[int]) -> Iterator[Stage]:
        per_token = await self._characters_per_token()
        mean = sum(map(len, self._options.prompts)) / len(self._options.prompts)
        usual = max(round(mean / per_token), 1)
        lengths: list[tuple[int, int | None]] = [
            (tokens, round(tokens * per_token)) for tokens in sorted(set(contexts))
        ]
        if not lengths:
            longer = await self._longer(usual, per_token)
            lengths = [(usual, None), *((tokens, round(tokens * per_token)) for tokens in longer)]

        capacity = await self._capacity()
        ends = (lengths[0], lengths[-1])
        return (
            Stage(at_once, length, tokens, is_warm)
            for tokens, length in lengths
            for at_once in loads
            if length is None or at_once * self._filled(tokens) <= capacity
            # Those between tell what prefill of such a length costs.
            for is_warm in ((False, True) if (tokens, length) in ends else (False,))
        )

    def _filled(self, tokens: int) -> int:
        return tokens + _LONGER * self._options.max_tokens

    async def _capacity(self) -> float:
        """Tokens of which the KV cache of an engine may hold as many at once."""
        page = await self._source.next()
        known = [engine.kv_cache_capacity_tokens for engine in page.engines]
        tokens = [capacity for capacity in known if capacity]
        return _OF_THE_CACHE * min(tokens) if tokens else float("inf")

    async def _characters_per_token(self) -> float:
        """As the server's own count of the prompts' tokens says.

        They are sent as one, since a chat's template counts for each request; a part of it where
        the model takes no more.
        """
        text = " ".join(self._options.prompts)[:_COUNTED]
        before = await self._prompt_tokens()
        while await self._client.ask(text, _TEMPERATURE, max_tokens=1) is None:
            text = text[: len(text) // 2]
            if len(text) < _LEAST_COUNTED:
                raise MeasurementError(
                    f"{self._client.name}: a request failed: {self._client.last_fault}"
                )

        tokens = await self._prompt_tokens() - before
        return len(text) / tokens if tokens > 0 else 4.0

    async def _prompt_tokens(self) -> float:
        try:
            page = await self._source.next()
        except ScrapeError:
            return 0.0
        return sum(engine.counters.get(Counter.PROMPT_TOKENS, 0.0) for engine in page.engines)

    async def _longer(self, usual: int, per_token: float) -> list[int]:
        """The lengths of longer prompts, or less where the model takes no more; may be empty."""
        tokens = max(_LONG_TOKENS, _TIMES_AS_LONG * usual)
        while tokens > 2 * usual:
            prompt = self._prompts.cold(round((self._filled(tokens) + _SPARE) * per_token))
            if await self._client.ask(prompt, _TEMPERATURE, max_tokens=1) is not None:
                middle = round(sqrt(max(usual, MIXED) * tokens))
                return [middle, tokens] if middle > 2 * usual else [tokens]
            tokens //= 2
        return []

    async def _stage(self, number: int, stage: Stage, seconds: float) -> None:
        if stage.is_warm:
            await self._fill_cache(stage, _WARMING_UP * seconds)

        self._answered = self._failed = 0
        clients = [asyncio.create_task(self._ask(stage, place)) for place in range(stage.at_once)]
        try:
            pause = await self._poller.poll()
            pause = await self._poll_for(_SETTLING * seconds, pause)

            self._measured.begin(Slot(number, stage.at_once))
            await self._poll_for((1 - _SETTLING) * seconds, pause)
            self._measured.end()
        finally:
            for task in clients:  # what they have decoded so far is already counted
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    async def _fill_cache(self, stage: Stage, seconds: float) -> None:
        """Sends each client's prompt once, for so long at most.

        Prefill may take longer than a slot, which would then pass before anything is decoded.
        """
        asked = (
            self._client.ask(self._prompts.warm(place, stage.length), _TEMPERATURE, max_tokens=1)
            for place in range(stage.at_once)
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*asked), seconds)

    async def _poll_for(self, seconds: float, pause: float) -> float:
        """Polls for so long, first after ``pause``; returns the pause before the next poll.

        Raises:
            MeasurementError: the server has drafted. Not every page shows it before.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            await asyncio.sleep(min(pause, left))
            pause = await self._poller.poll()

            if self._measured.drafted:
                raise MeasurementError(
                    f"{self._client.name} speculates: --load needs a vLLM that does not"
                )

        return pause

    async def _ask(self, stage: Stage, place: int) -> None:
        # Clients in step with each other would prefill while nobody decodes, and the times would
        # lack what prefill costs.
        part = (place + 1) / stage.at_once
        while True:
            length = ceil(part * self._options.max_tokens * (_LONGER if stage.is_warm else 1))
            prompt = self._prompts.cold(stage.length)
            if stage.is_warm:
                prompt = self._prompts.warm(place, stage.length)
            if await self._client.ask(prompt, _TEMPERATURE, max_tokens=length) is None:
                self._failed += 1
                await asyncio.sleep(_AFTER_FAILURE)
            else:
                self._answered += 1
            part = 1.0


class Progress:
    """How many slots there will be, and how long they will take, by those before."""

    def __init__(
        self,
        seconds: float,
        each: float,
        stages: int,
        rounds: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most ``rounds`` of ``stages`` slots, each of which takes ``each`` or longer."""
        self._seconds = seconds
        self._each = each
        self._stages = stages
        self._rounds = rounds
        self._done = 0  # slots
        self._clock = clock
        self._began = clock()

    @property
    def has_time(self) -> bool:
        """Whether another round ends in time."""
        return self._spent + self._stages * self._usual <= _OVER * self._seconds

    def step(self) -> str:
        """Begins a slot; says which one it is, and how long all that are left take."""
        rounds = floor(_OVER * self._seconds / (self._stages * self._usual))
        slots = min(max(rounds, _ROUNDS), self._rounds) * self._stages
        slots = max(slots, self._done + 1)
        left = (slots - self._done) * self._usual
        self._done += 1
        return f"{self._done} of at most {slots}, {duration(left)} left"

    @property
    def _spent(self) -> float:
        return self._clock() - self._began

    @property
    def _usual(self) -> float:
        """Seconds that a slot takes.

        In the first round what was planned: its slots differ in length, so that the mean of some
        tells nothing yet.
        """
        if self._done < self._stages:
            return self._each
        return max(self._spent / self._done, self._each)


def _slot_seconds(seconds: float, stages: int) -> float:
    """The length of a slot, so that there are six rounds, and twelve if there is time for them."""
    return min(max(seconds / (_MOST_ROUNDS * stages), _LEAST_SLOT), seconds / (_ROUNDS * stages))
