"""``baseline``: watch vLLM while all is well and write its latencies down, to compare with later."""

import argparse
import asyncio
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import yaml

from sidecar import wiring
from sidecar.analysis.latency import latency
from sidecar.engine.continuation import Continuation
from sidecar.engine.fetch import Fetcher
from sidecar.engine.histograms import HistogramWindow
from sidecar.engine.merge import merge
from sidecar.engine.names import Phase
from sidecar.engine.pacing import Pacing
from sidecar.engine.page_source import PageSource
from sidecar.engine.plan import EngineKey
from sidecar.engine.scrape import Poller
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.log import redacted
from sidecar.settings import Settings
from sidecar.settings.field_types import parse_duration
from sidecar.settings.groups import Target

_LONGEST = 24 * 3600.0  # seconds
_DIGITS = 6


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 with a baseline written, 1 where no page came or no request ended, 2 for a bad duration or file."""
    try:
        duration = parse_duration(arguments.duration, 1, _LONGEST)
    except ValueError as error:
        print(f"--duration={arguments.duration}: {error}", file=sys.stderr)
        return 2
    if arguments.out is not None and not arguments.out.absolute().parent.is_dir():
        print(f"--out={arguments.out}: there is no such folder", file=sys.stderr)
        return 2
    print(f"watching for {duration:g} s", file=sys.stderr)
    models = asyncio.run(_watch(settings, duration))
    found = {model: phases for model, grown in models.items() if (phases := _phases(grown))}
    if not found:
        print(_nothing(settings, seen=bool(models)), file=sys.stderr)
        return 1
    text = f"# Measured over {duration:g} s.\n" + yaml.safe_dump({"baseline": found}, sort_keys=False)
    return _write(text, arguments.out)


def _nothing(settings: Settings, *, seen: bool) -> str:
    """Why there is nothing to write, and what to do; ``seen``: vLLM's page could be read."""
    if seen:
        return "no request ended while watching, so there is nothing to write; watch for longer, or send traffic"
    asked = ", ".join(redacted(target.vllm_url) for target in settings.vllms)
    return f"vLLM's page could not be read at {asked}, so there is nothing to write; `specdec-sidecar check` says why"


def _write(text: str, out: Path | None) -> int:
    if out is None:
        print(text, end="")
        return 0
    try:
        out.write_text(text)
    except OSError as error:
        print(text, end="")  # what took so long to measure is not thrown away
        print(f"--out={out}: {error.strerror}; so it is printed", file=sys.stderr)
        return 2
    print(f"written to {out}; use it with SPECDEC_BASELINE_FILE={out}", file=sys.stderr)
    return 0


def _phases(grown: EngineSnapshot) -> dict[str, dict[str, float]]:
    found = {phase: latency(reading) for phase, reading in grown.histograms.items()}
    return {
        str(phase): {f"p{quantile * 100:.0f}": round(value, _DIGITS) for quantile, value in known.quantiles.items()}
        for phase, known in found.items()
        if known is not None
    }


class _Engines:
    """A scrape sink: one server's histograms, engine by engine, so that each one's restarts are its own."""

    def __init__(self, duration: float) -> None:
        self._window = 2 * duration  # longer than the watch, so that nothing leaves it before the end
        self._engines: dict[EngineKey, tuple[Continuation, HistogramWindow]] = {}
        self._fault: str | None = None  # the last one said; one that lasts is said once

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:  # noqa: ARG002
        """See ``ScrapeSink``; durations and intervals don't matter here."""
        self._fault = None
        for engine in page.engines:
            if engine.key not in self._engines:
                self._engines[engine.key] = (Continuation(), HistogramWindow(self._window))
            continuation, histograms = self._engines[engine.key]
            histograms.append(at, continuation.advance(engine).engine.histograms)

    def failed(self, at: float, error: ScrapeError) -> None:  # noqa: ARG002
        """See ``ScrapeSink``; when it failed doesn't matter here."""
        fault = f"no page ({error.reason}): {error}"
        if fault != self._fault:
            print(fault, file=sys.stderr)
        self._fault = fault

    def growth(self) -> Iterator[EngineSnapshot]:
        """What each engine's histograms have grown by."""
        for key, (_, histograms) in self._engines.items():
            grown = {phase: reading for phase in Phase if (reading := histograms.growth(phase)) is not None}
            yield EngineSnapshot(key, {}, (), {}, grown, None)


async def _watch(settings: Settings, duration: float) -> dict[str, EngineSnapshot]:
    """The growth by model, of all its engines on all servers together."""
    servers = [(target, _Engines(duration)) for target in settings.vllms]
    async with asyncio.TaskGroup() as group:
        for target, engines in servers:
            group.create_task(_poll(target, settings, engines, duration))
    by_model: dict[str, list[EngineSnapshot]] = defaultdict(list)
    for _, engines in servers:
        for engine in engines.growth():
            by_model[engine.key.model_name].append(engine)
    return {model: merge(engines) for model, engines in by_model.items()}


async def _poll(target: Target, settings: Settings, sink: _Engines, duration: float) -> None:
    fetcher = Fetcher(target.vllm_url, wiring.fetch(settings))
    source = PageSource(fetcher, wiring.page_limits(settings), filtered=settings.scrape_filtered)
    poller = Poller(source, Pacing(wiring.pacing(settings), random.random), sink, time.time, time.monotonic)
    try:
        async with asyncio.timeout(duration):
            await poller.run()
    except TimeoutError:
        await poller.poll()  # the last word, at the very end
    finally:
        await fetcher.close()
