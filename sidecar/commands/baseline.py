"""``baseline``: measure a healthy vLLM's latencies, for the sidecar to compare against later."""

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
from sidecar.commands.arguments import duration, file_to_write
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
from sidecar.settings.groups import Target

HELP = "measure the latencies of a healthy vLLM and write them as a baseline"
_DIGITS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``baseline`` takes."""
    parser.add_argument("--duration", type=duration, default=60.0, metavar="TIME", help="such as 10m (default: 60s)")
    parser.add_argument("--out", type=file_to_write, metavar="FILE", help="write to this file, not to the terminal")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 with a baseline written, 1 if no page came or no request finished, 2 if the file cannot be written."""
    seconds: float = arguments.duration
    print(f"watching for {seconds:g} s", file=sys.stderr)
    models = asyncio.run(_watch(settings, seconds))
    found = {model: phases for model, grown in models.items() if (phases := _phases(grown))}
    if not found:
        print(_nothing(settings, seen=bool(models)), file=sys.stderr)
        return 1
    text = f"# Measured over {seconds:g} s.\n" + yaml.safe_dump({"baseline": found}, sort_keys=False)
    return _write(text, arguments.out)


def _nothing(settings: Settings, *, seen: bool) -> str:
    """Why there is nothing to write, and what to do; ``seen``: vLLM's page was read."""
    if seen:
        return "no request finished while watching, so there is nothing to write; watch for longer, or send traffic"
    asked = ", ".join(redacted(target.vllm_url) for target in settings.vllms)
    return f"cannot read vLLM's page at {asked}, so there is nothing to write; `specdec-sidecar check` says why"


def _write(text: str, out: Path | None) -> int:
    if out is None:
        print(text, end="")
        return 0
    try:
        out.write_text(text)
    except OSError as error:
        print(text, end="")  # keep what took so long to measure
        print(f"--out={out}: {error.strerror}; printed instead", file=sys.stderr)
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

    def __init__(self, seconds: float) -> None:
        self._window = 2 * seconds  # longer than the watch, so that nothing leaves it before the end
        self._engines: dict[EngineKey, tuple[Continuation, HistogramWindow]] = {}
        self._fault: str | None = None  # the last one printed: a lasting fault is printed once

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:  # noqa: ARG002
        """See ``ScrapeSink``; ignores durations and intervals."""
        self._fault = None
        for engine in page.engines:
            if engine.key not in self._engines:
                self._engines[engine.key] = (Continuation(), HistogramWindow(self._window))
            continuation, histograms = self._engines[engine.key]
            histograms.append(at, continuation.advance(engine).engine.histograms)

    def failed(self, at: float, error: ScrapeError) -> None:  # noqa: ARG002
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


async def _watch(settings: Settings, seconds: float) -> dict[str, EngineSnapshot]:
    """The growth by model, of all its engines on all servers together."""
    servers = [(target, _Engines(seconds)) for target in settings.vllms]
    async with asyncio.TaskGroup() as group:
        for target, engines in servers:
            group.create_task(_poll(target, settings, engines, seconds))
    by_model: dict[str, list[EngineSnapshot]] = defaultdict(list)
    for _, engines in servers:
        for engine in engines.growth():
            by_model[engine.key.model_name].append(engine)
    return {model: merge(engines) for model, engines in by_model.items()}


async def _poll(target: Target, settings: Settings, sink: _Engines, seconds: float) -> None:
    fetcher = Fetcher(target.vllm_url, wiring.fetch(settings))
    source = PageSource(fetcher, wiring.page_limits(settings), filtered=settings.scrape_filtered)
    poller = Poller(source, Pacing(wiring.pacing(settings), random.random), sink, time.time, time.monotonic)
    try:
        async with asyncio.timeout(seconds):
            await poller.run()
    except TimeoutError:
        await poller.poll()  # once more, at the very end
    finally:
        await fetcher.close()
