"""How ``baseline`` measures: by polling one or more servers, with requests if asked to, or from a recording."""

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Final

from sidecar import wiring
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.plain_decoding import PlainDecoding
from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.options import SweepOptions
from sidecar.engine.continuation import Continuation
from sidecar.engine.histograms import HistogramWindow
from sidecar.engine.merge import merge
from sidecar.engine.names import Phase
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.engine.version import VersionFamily
from sidecar.errors import ScrapeError
from sidecar.recording.recording import read_scrapes
from sidecar.requests.record import Outcome
from sidecar.settings import Settings

_ROUNDS: Final = 3  # of all levels, so that a machine that drifts does not look like one that slows down under load
_TEMPERATURE: Final = 0.7  # plain decoding takes the same time at any temperature
_AFTER_FAILURE: Final = 0.5  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What was seen until ``until`` (Unix seconds) over ``seconds``.

    ``models`` holds the growth of the histograms of all engines together, ``curves`` the plain step times of the models
    that did not draft and decoded enough; ``drafted`` are the models that did.
    """

    models: Mapping[str, EngineSnapshot]
    curves: Mapping[str, PlainCurve]
    drafted: frozenset[str]
    version: VersionFamily
    seconds: float
    until: float


class _Engines:
    """A scrape sink: one server's histograms, engine by engine, so that each one's restarts are its own."""

    def __init__(self) -> None:
        self.decoding = PlainDecoding()
        self._engines: dict[EngineKey, tuple[Continuation, HistogramWindow]] = {}
        self._fault: str | None = None  # the last one printed: a lasting fault is printed once
        self.version = VersionFamily.UNKNOWN

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:  # noqa: ARG002 - the protocol's signature
        """See ``ScrapeSink``; ignores durations and intervals."""
        self._fault = None
        if page.version is not VersionFamily.UNKNOWN:
            self.version = page.version
        for engine in page.engines:
            # Unbounded, so that nothing leaves the window.
            continuation, histograms = self._engines.setdefault(
                engine.key, (Continuation(), HistogramWindow(float("inf")))
            )
            histograms.append(at, continuation.advance(engine).engine.histograms)
        self.decoding.scraped(at, page)

    def failed(self, at: float, error: ScrapeError) -> None:  # noqa: ARG002 - the protocol's signature
        """See ``ScrapeSink``; ignores when it failed."""
        fault = f"no page ({error.reason}): {error}"
        if fault != self._fault:
            print(fault, file=sys.stderr)
        self._fault = fault

    def growth(self) -> Iterator[EngineSnapshot]:
        """The growth of each engine's histograms."""
        for key, (_, histograms) in self._engines.items():
            grown = {phase: reading for phase in Phase if (reading := histograms.growth(phase)) is not None}
            yield EngineSnapshot(key, {}, (), {}, grown, None)


async def watch(
    urls: Sequence[str], settings: Settings, seconds: float, load: SweepOptions | None, prompts: Sequence[str]
) -> Watched:
    """Polls all servers for ``seconds``, while sending requests if there is a ``load``.

    Raises:
        MeasurementError: the server does not answer requests.
    """
    servers = [_Engines() for _ in urls]
    polls = (_poll(url, settings, engines, seconds) for url, engines in zip(urls, servers, strict=True))
    tasks = [asyncio.create_task(poll) for poll in polls]
    try:
        if load is not None:
            await _send(load, prompts)
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return _watched(servers, seconds, time.time())


async def _send(options: SweepOptions, prompts: Sequence[str]) -> None:
    """Sends requests for ``options.seconds``, divided equally among the loads, all of which are concurrency levels.

    Raises:
        MeasurementError: the server does not answer as an OpenAI-style one.
    """
    async with Client("--url", options.url, options) as client:
        await client.connect(prompts[0])
        turns = cycle(prompts)

        async def worker() -> None:
            while True:
                record = await client.ask(next(turns), _TEMPERATURE, options.max_tokens)
                if record.outcome is not Outcome.COMPLETED:
                    await asyncio.sleep(_AFTER_FAILURE)

        levels = sorted({load.at_once or 1 for load in options.loads}) * _ROUNDS
        for at_once in levels:
            print(f"{at_once} at once", file=sys.stderr)
            tasks = [asyncio.create_task(worker()) for _ in range(at_once)]
            await asyncio.sleep(options.seconds / len(levels))
            for task in tasks:  # everything decoded so far has been counted
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def from_recording(directory: Path) -> Watched:
    """The same from the polls of a recording.

    Raises:
        RecordingError: it cannot be read.
    """
    engines = _Engines()
    times = []
    for scrape in read_scrapes(directory):
        if scrape.snapshot is not None:
            engines.scraped(scrape.at, 0.0, 0.0, scrape.snapshot)
            times.append(scrape.at)
    return _watched([engines], round(times[-1] - times[0]) if times else 0.0, times[-1] if times else 0.0)


def _watched(servers: Sequence[_Engines], seconds: float, until: float) -> Watched:
    by_model: dict[str, list[EngineSnapshot]] = defaultdict(list)
    curves: dict[str, PlainCurve] = {}
    drafted: set[str] = set()
    for engines in servers:
        for engine in engines.growth():
            by_model[engine.key.model_name].append(engine)
        curves |= engines.decoding.curves()
        drafted |= engines.decoding.drafted
    return Watched(
        models={model: merge(engines) for model, engines in by_model.items()},
        curves={model: curve for model, curve in curves.items() if model not in drafted},
        drafted=frozenset(drafted),
        version=next((e.version for e in servers if e.version is not VersionFamily.UNKNOWN), VersionFamily.UNKNOWN),
        seconds=seconds,
        until=until,
    )


async def _poll(url: str, settings: Settings, sink: _Engines, seconds: float) -> None:
    async with wiring.page_source(url, settings) as source:
        poller = wiring.poller(source, settings, sink)
        try:
            async with asyncio.timeout(seconds):
                await poller.run()
        except TimeoutError:
            await poller.poll()  # once more, at the very end
