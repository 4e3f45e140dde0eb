"""How ``baseline`` measures: by polling vLLM, sending requests if asked to, or from a recording."""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from math import inf
from pathlib import Path
from typing import Final

import structlog

from sidecar.analysis.engine.engines import Engines
from sidecar.analysis.speed.plain import fit
from sidecar.analysis.speed.steps import Steps
from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.options import RequestOptions
from sidecar.commands.watching import first_page, polling
from sidecar.engine.merge import merge
from sidecar.engine.names import Counter, Phase, Trait
from sidecar.engine.page_source import page_source
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, PageSnapshot
from sidecar.errors import MeasurementError, ScrapeError
from sidecar.log import StateLog, redacted
from sidecar.recording.recording import read_scrapes
from sidecar.settings import Settings
from sidecar.settings.baselines import PlainStepTimes
from sidecar.settings.groups import Limits

_ROUNDS: Final = 3  # of all levels, so that a drifting machine does not look like one that slows down under load
_TEMPERATURE: Final = 0.7  # plain decoding takes the same time at any temperature
_AFTER_FAILURE: Final = 0.5  # seconds
_WINDOWS: Final = ("latency_window", "history")


class Watched:
    """A scrape sink that collects each engine's latencies and what it decoded from poll to poll."""

    def __init__(self) -> None:
        self.periods: dict[str, list[Steps]] = {}  # from poll to poll, by model
        self.drafted: set[str] = set()  # the models that speculated
        self.began = self.until = 0.0  # Unix seconds of the first and the last page
        # Infinite windows, so that nothing drops out of them.
        endless = Settings(limits=Limits(engines=64, models=16)).model_copy(update=dict.fromkeys(_WINDOWS, inf))
        self._engines = Engines(endless)
        self._log = StateLog(structlog.get_logger("sidecar"))

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:  # noqa: ARG002 - the protocol's signature
        """See ``ScrapeSink``; ignores the duration and the interval."""
        self.began, self.until = self.began or at, at
        self._engines.observe(at, page)
        self.drafted |= {engine.key.model_name for engine in page.engines if Trait.OVERCOUNTED in engine.traits}
        for key, state in self._engines.states.items():
            if state.seen_at != at or state.grown is None:
                continue
            if state.grown.get(Counter.DRAFTS):
                self.drafted.add(key.model_name)
            if state.steps is not None:
                self.periods.setdefault(key.model_name, []).append(state.steps)

    def failed(self, at: float, error: ScrapeError) -> None:  # noqa: ARG002 - the protocol's signature
        """See ``ScrapeSink``; ignores the time of the failure."""
        self._log.fault("vllm", "cannot read vLLM's metrics", reason=error.reason, problem=str(error))

    def histograms(self) -> Mapping[str, Mapping[Phase, HistogramReading]]:
        """How much each model's histograms have grown, all of its engines together."""
        models: dict[str, list[EngineSnapshot]] = defaultdict(list)
        for key, state in self._engines.states.items():
            models[key.model_name].append(EngineSnapshot(key, {}, (), {}, state.histograms, None))
        return {model: merge(engines).histograms for model, engines in models.items()}

    def curves(self) -> dict[str, PlainStepTimes]:
        """Plain step times by model, without models that speculated or decoded too little."""
        plain = {model: fit(periods) for model, periods in self.periods.items() if model not in self.drafted}
        return {model: curve for model, curve in plain.items() if curve is not None}


async def watch(url: str, settings: Settings, seconds: float, loads: Sequence[int], options: RequestOptions) -> Watched:
    """Polls the vLLM at ``url`` for ``seconds``, divided equally among the ``loads`` (concurrent requests), if any.

    Raises:
        MeasurementError: vLLM's first page cannot be read, vLLM speculates although ``loads`` measure plain
            decoding, or it does not answer requests.
    """
    found = Watched()
    async with page_source(settings.model_copy(update={"vllm_url": url}), settings.limits) as source:
        page = await first_page(source, url)
        if loads and any(engine.speculates for engine in page.engines):
            raise MeasurementError(f"{redacted(url)} speculates: --load needs a vLLM that does not")
        async with polling(source, settings, found) as poller:
            await (_send(url, seconds, loads, options) if loads else asyncio.sleep(seconds))
        await poller.poll()  # once more, at the very end
    return found


async def _send(url: str, seconds: float, loads: Sequence[int], options: RequestOptions) -> None:
    """Sends requests, with each load in turn.

    Raises:
        MeasurementError: the server does not answer like an OpenAI-style one.
    """
    async with Client(url, options) as client:
        await client.connect(options.prompts[0])
        turns = cycle(options.prompts)

        async def worker() -> None:
            while True:
                if await client.ask(next(turns), _TEMPERATURE) is None:
                    await asyncio.sleep(_AFTER_FAILURE)

        levels = sorted(set(loads)) * _ROUNDS
        for at_once in levels:
            print(f"concurrency {at_once}", file=sys.stderr)
            tasks = [asyncio.create_task(worker()) for _ in range(at_once)]
            await asyncio.sleep(seconds / len(levels))
            for task in tasks:  # what they have decoded so far is already counted
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def from_recording(directory: Path) -> Watched:
    """The same from a recording's polls.

    Raises:
        RecordingError: it cannot be read.
    """
    found = Watched()
    for scrape in read_scrapes(directory):
        if scrape.snapshot is not None:
            found.scraped(scrape.at, 0.0, 0.0, scrape.snapshot)
    return found
