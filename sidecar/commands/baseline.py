"""``baseline``: measure a healthy vLLM's latencies and plain step times.

The sidecar compares with them later.
"""

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import cycle
from math import ceil, inf
from pathlib import Path
from typing import Any, Final

import structlog
import yaml

from sidecar.analysis.engine.cache import mean_capacity, sum_caches
from sidecar.analysis.engine.engine_state import EngineState, latency
from sidecar.analysis.engine.engines import Engines
from sidecar.analysis.speed.plain import fit
from sidecar.analysis.speed.steps import Steps
from sidecar.commands.arguments import base_url, duration, file_to_write, listed, whole, written
from sidecar.commands.load.client import Client
from sidecar.commands.load.workload import (
    MOST_AT_ONCE,
    RequestOptions,
    add_request_arguments,
    request_options,
)
from sidecar.commands.waiting import stop_on_signals, unless_stopped
from sidecar.engine.merge import merge
from sidecar.engine.names import Counter, Phase, Trait
from sidecar.engine.page_source import page_source
from sidecar.engine.scrape import Poller
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, PageSnapshot
from sidecar.errors import MeasurementError, ScrapeError
from sidecar.log import StateLog, redacted
from sidecar.settings import Settings
from sidecar.settings.baselines import PlainStepTimes
from sidecar.settings.groups import Limits

HELP = (
    "measure the latencies of a healthy vLLM and its step times without speculation, "
    "and write them as a baseline"
)
_DIGITS: Final = 6
# Share of a level that the step times must reach: while requests end, fewer run.
_REACHED: Final = 0.7
# Of all levels, so that a drifting machine does not look like one that slows down under load.
_ROUNDS: Final = 3
_TEMPERATURE: Final = 0.7  # plain decoding takes the same time at any temperature
_AFTER_FAILURE: Final = 0.5  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``baseline``."""
    parser.add_argument(
        "--url", type=base_url, help="the vLLM to measure (default: the setting vllm_url)"
    )
    load = "also send requests, at these concurrency levels: 1,2,4,8,16 (default: only watch)"
    parser.add_argument(
        "--load", type=listed(whole(MOST_AT_ONCE)), default=(), metavar="N,N", help=load
    )
    parser.add_argument(
        "--duration",
        type=duration,
        metavar="TIME",
        help="such as 10m (default: 60s; 5m with --load)",
    )
    parser.add_argument(
        "--out", type=file_to_write, metavar="FILE", help="write to this file, not to the terminal"
    )
    add_request_arguments(parser, "with --load")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if it wrote or printed a baseline.

    Returns 1 if there is nothing to write, 2 if the file cannot be written.

    Raises:
        InputError: ``--prompts`` cannot be used.
        MeasurementError: vLLM's page cannot be read, it speculates despite ``--load``, or it
            answers no request.
        SettingsError: the API key cannot be used.
    """
    url = arguments.url or settings.vllm_url
    seconds: float = arguments.duration or (300.0 if arguments.load else 60.0)
    options = request_options(arguments, settings)

    print(f"{'measuring' if arguments.load else 'watching'} for {seconds:g} s", file=sys.stderr)
    measured = asyncio.run(measure(url, settings, seconds, arguments.load, options))
    histograms, curves = measured.histograms(), measured.curves()
    _warn(histograms.keys() - curves.keys(), measured.drafted, curves, arguments.load)

    document = {
        "baseline": {
            model: phases
            for model, grown in histograms.items()
            if (phases := _phases(model, grown))
        },
        "plain_steps": {model: _plain_steps(curve, measured) for model, curve in curves.items()},
        "plain_cache": measured.caches(),
    }
    document = {name: models for name, models in document.items() if models}

    if not document:
        print(
            "no requests finished, so there is nothing to write; watch longer, or send traffic",
            file=sys.stderr,
        )
        return 1

    text = f"# Measured over {measured.until - measured.began:.0f} s.\n"
    text += yaml.safe_dump(document, sort_keys=False, default_flow_style=None)

    out: Path | None = arguments.out
    if out is None or not written("--out", out, text.encode()):
        print(text, end="")  # do not lose what took so long to measure
        return 0 if out is None else 2
    print(f"written to {out}; use it with SPECDEC_BASELINE_FILE={out}", file=sys.stderr)
    return 0


class BaselineRun:
    """A scrape sink that collects each engine's latencies and what it decoded from poll to poll."""

    def __init__(self) -> None:
        self.drafted: set[str] = set()  # the models that speculated
        self.began = self.until = 0.0  # Unix seconds of the first and the last page
        self.periods: dict[str, list[Steps]] = {}  # from poll to poll, by model
        windows = {"latency_window": inf, "history": inf}  # so that nothing drops out of them
        endless = Settings(limits=Limits(engines=64, models=16)).model_copy(update=windows)
        self._engines = Engines(endless)
        self._log = StateLog(structlog.get_logger("sidecar"))

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:  # noqa: ARG002 - the protocol's signature
        """See ``ScrapeSink``; ignores the duration and the interval."""
        self.began, self.until = self.began or at, at
        self._engines.observe(at, page)
        self.drafted |= {
            engine.key.model_name for engine in page.engines if Trait.OVERCOUNTED in engine.traits
        }
        for key, state in self._engines.states.items():
            if state.seen_at != at or state.grown is None:
                continue
            if state.grown.get(Counter.DRAFTS):
                self.drafted.add(key.model_name)
            if state.steps is not None:
                self.periods.setdefault(key.model_name, []).append(state.steps)

    def failed(self, at: float, error: ScrapeError) -> None:  # noqa: ARG002 - the protocol's signature
        """See ``ScrapeSink``; ignores the time of the failure."""
        self._log.fault(
            "vllm", "cannot read vLLM's metrics", reason=error.reason, problem=str(error)
        )

    def histograms(self) -> Mapping[str, Mapping[Phase, HistogramReading]]:
        """How much each model's histograms have grown, all of its engines together."""
        models: dict[str, list[EngineSnapshot]] = defaultdict(list)
        for key, state in self._engines.states.items():
            models[key.model_name].append(EngineSnapshot(key, {}, (), {}, state.histograms, None))
        return {model: merge(engines).histograms for model, engines in models.items()}

    def caches(self) -> dict[str, dict[str, float]]:
        """The KV cache by model, as in ``PlainCache``.

        Without models that speculated or got no requests.
        """
        models = {key.model_name for key in self._engines.states} - self.drafted
        caches = {model: _plain_cache(self._engines.of(model)) for model in sorted(models)}
        return {
            model: cache
            for model, cache in caches.items()
            if "preemptions_ratio" in cache or "hit_ratio" in cache
        }

    def curves(self) -> dict[str, PlainStepTimes]:
        """Plain step times by model, without models that speculated or decoded too little."""
        plain = {
            model: fit(periods)
            for model, periods in self.periods.items()
            if model not in self.drafted
        }
        return {model: curve for model, curve in plain.items() if curve is not None}


async def measure(
    url: str, settings: Settings, seconds: float, loads: Sequence[int], options: RequestOptions
) -> BaselineRun:
    """Polls the vLLM at ``url`` for ``seconds``.

    The ``loads`` (concurrent requests), if any, share this time equally.

    Raises:
        MeasurementError: vLLM's first page cannot be read, vLLM speculates although ``loads``
            measure plain decoding, or it does not answer requests.
    """
    measured = BaselineRun()
    scrape = settings.model_copy(update={"vllm_url": url})
    async with page_source(scrape, settings.limits) as source:
        try:  # before it waits or sends requests in vain
            page = await source.next()
        except ScrapeError as error:
            fault = f"cannot read vLLM's metrics at {redacted(url)} ({error.reason}: {error})"
            remedy = f"`SPECDEC_VLLM_URL={redacted(url)} specdec-sidecar check` shows why"
            raise MeasurementError(f"{fault}; {remedy}") from None

        if loads and any(engine.speculates for engine in page.engines):
            raise MeasurementError(f"{redacted(url)} speculates: --load needs a vLLM that does not")

        poller = Poller(source, settings, measured)
        polls = asyncio.create_task(poller.run())
        try:
            work = _send(url, seconds, loads, options) if loads else asyncio.sleep(seconds)
            # After a signal, what was measured so far is written.
            await unless_stopped(work, stop_on_signals())
        finally:
            polls.cancel()
            with suppress(asyncio.CancelledError):
                await polls  # an error that ended them is raised here

        await poller.poll()  # once more, at the very end
    return measured


async def _send(url: str, seconds: float, loads: Sequence[int], options: RequestOptions) -> None:
    """Sends requests, with each load in turn.

    Raises:
        MeasurementError: the server does not answer like an OpenAI-style one.
    """
    async with Client(url, options) as client:
        await client.connect(options.prompts[0])
        prompts = cycle(options.prompts)

        async def worker(part: float) -> None:
            # Clients in step with each other would prefill while nobody decodes, and S0 would lack
            # what prefill costs.
            await client.ask(
                next(prompts), _TEMPERATURE, max_tokens=ceil(part * options.max_tokens)
            )
            while True:
                if await client.ask(next(prompts), _TEMPERATURE) is None:
                    await asyncio.sleep(_AFTER_FAILURE)

        levels = sorted(set(loads)) * _ROUNDS
        for at_once in levels:
            print(f"concurrency {at_once}", file=sys.stderr)
            tasks = [asyncio.create_task(worker((place + 1) / at_once)) for place in range(at_once)]
            await asyncio.sleep(seconds / len(levels))
            for task in tasks:  # what they have decoded so far is already counted
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _warn(
    without: Iterable[str],
    drafted: Container[str],
    curves: Mapping[str, PlainStepTimes],
    loads: Sequence[int],
) -> None:
    """Prints which plain step times are missing.

    For models ``without`` any, it says why; for others, at which of the ``loads`` they have none.
    """
    for model in sorted(without):
        why = "not enough tokens, or vLLM exports no step times"
        if model in drafted:
            why = "it speculates"
        print(f"{model}: no plain step times ({why})", file=sys.stderr)
    for model, curve in curves.items():
        low, high = _REACHED * curve.running[0], curve.running[-1] / _REACHED
        if missed := ", ".join(str(load) for load in loads if not low <= load <= high):
            print(
                f"{model}: no step times with {missed} running: measure longer, with --duration",
                file=sys.stderr,
            )


def _phases(
    model: str, histograms: Mapping[Phase, HistogramReading]
) -> dict[str, dict[str, float]]:
    """The latencies of a model's phases, in seconds.

    Prints the phases for which vLLM's buckets are too coarse.
    """
    latencies = {
        str(phase): known
        for phase, reading in histograms.items()
        if (known := latency(reading)) is not None
    }

    coarse = [phase for phase, known in latencies.items() if known.gap_seconds is None]
    if coarse:
        where = f"{model}: {', '.join(coarse)}"
        print(f"{where}: interpolated, since P99 is in vLLM's first bucket", file=sys.stderr)

    return {
        phase: {
            f"p{quantile * 100:.0f}": round(value, _DIGITS)
            for quantile, value in known.quantiles.items()
        }
        for phase, known in latencies.items()
    }


def _plain_cache(engines: Sequence[EngineState]) -> dict[str, float]:
    cache = sum_caches(engine.cache for engine in engines)
    found = {
        "hit_ratio": cache.hit_ratio,
        "capacity_tokens": mean_capacity(
            one.latest.kv_cache_capacity_tokens for one in engines if one.latest
        ),
        "preemptions_ratio": cache.preemptions_ratio,
    }
    return {name: round(value, _DIGITS) for name, value in found.items() if value is not None}


def _plain_steps(curve: PlainStepTimes, measured: BaselineRun) -> dict[str, Any]:
    steps: dict[str, Any] = {
        "running": [round(running, 2) for running in curve.running],
        "seconds": [round(seconds, _DIGITS) for seconds in curve.seconds],
        "errors": [round(error, _DIGITS) for error in curve.errors],
        "deviations": [
            [round(deviation, _DIGITS) for deviation in row] for row in curve.deviations
        ],
        "prompt_share": round(curve.prompt_share, 3),
        "measured": datetime.fromtimestamp(measured.until, UTC).isoformat(timespec="seconds"),
    }
    if curve.first_token_seconds:
        steps["first_token_seconds"] = [
            round(seconds, _DIGITS) for seconds in curve.first_token_seconds
        ]
    return steps
