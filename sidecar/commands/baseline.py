"""``baseline``: watch vLLM while all is well and write its latencies down, to compare with later."""

import argparse
import asyncio
import random
import sys
import time
from collections import defaultdict
from pathlib import Path

import yaml

from sidecar import options
from sidecar.analysis.engine_state import EngineReport, EngineState, Windows
from sidecar.engine.fetch import Fetcher
from sidecar.engine.merge import merge
from sidecar.engine.pacing import Pacing
from sidecar.engine.page_source import PageSource
from sidecar.engine.plan import EngineKey
from sidecar.engine.scrape import Poller
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.settings import Settings
from sidecar.settings.groups import Target
from sidecar.settings.kinds import Duration

_LONGEST = 24 * 3600.0  # seconds
_DIGITS = 6


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 with a baseline written, 1 where no request ended meanwhile, 2 for a bad duration or file."""
    try:
        duration = Duration(1, _LONGEST).read(arguments.duration)
    except ValueError as error:
        print(f"--duration={arguments.duration}: {error}", file=sys.stderr)
        return 2
    print(f"watching for {duration:g} s", file=sys.stderr)
    models = asyncio.run(_watch(settings, duration))
    found = {model: phases for model, report in models.items() if (phases := _phases(report))}
    if not found:
        print("no request ended while watching, so there is nothing to write", file=sys.stderr)
        return 1
    text = f"# Measured over {duration:g} s.\n" + yaml.safe_dump({"baseline": found}, sort_keys=False)
    return _write(text, arguments.out)


def _write(text: str, out: Path | None) -> int:
    if out is None:
        print(text, end="")
        return 0
    try:
        out.write_text(text)
    except OSError as error:
        print(f"--out={out}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"written to {out}; use it with SPECDEC_BASELINE_FILE={out}", file=sys.stderr)
    return 0


def _phases(report: EngineReport) -> dict[str, dict[str, float]]:
    return {
        str(phase): {f"p{quantile * 100:.0f}": round(value, _DIGITS) for quantile, value in latency.quantiles.items()}
        for phase, latency in report.latencies.items()
    }


class _Models:
    """A scrape sink: one state a model, all its engines together."""

    def __init__(self, duration: float) -> None:
        # Longer than the watch, so that nothing leaves the window before the end.
        self._windows = Windows(latency=2 * duration, kv_peak=duration, history=2 * duration)
        self._states: dict[str, EngineState] = {}

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:  # noqa: ARG002
        """See ``ScrapeSink``; durations and intervals don't matter here."""
        by_model: dict[str, list[EngineSnapshot]] = defaultdict(list)
        for engine in page.engines:
            by_model[engine.key.model_name].append(engine)
        for model, engines in by_model.items():
            state = self._states.setdefault(model, EngineState(self._windows))
            state.observe(at, merge(engines, EngineKey(model, "all")), restarted=None)

    def failed(self, at: float, error: ScrapeError) -> None:  # noqa: ARG002
        """See ``ScrapeSink``; when it failed doesn't matter here."""
        print(f"no page ({error.reason}): {error}", file=sys.stderr)

    def reports(self, now: float) -> dict[str, EngineReport]:
        """What was seen, by model."""
        return {model: state.report(EngineKey(model, "all"), now, fresh=True) for model, state in self._states.items()}


async def _watch(settings: Settings, duration: float) -> dict[str, EngineReport]:
    models = _Models(duration)
    async with asyncio.TaskGroup() as group:
        for target in settings.vllms:
            group.create_task(_poll(target, settings, models, duration))
    return models.reports(time.time())


async def _poll(target: Target, settings: Settings, models: _Models, duration: float) -> None:
    fetcher = Fetcher(target.vllm_url, options.fetch(settings))
    source = PageSource(fetcher, options.page_limits(settings), filtered=settings.scrape_filtered)
    poller = Poller(source, Pacing(options.pacing(settings), random.random), models, time.time, time.monotonic)
    try:
        async with asyncio.timeout(duration):
            await poller.run()
    except TimeoutError:
        await poller.poll()  # the last word, at the very end
    finally:
        await fetcher.close()
