"""``baseline``: measure a healthy vLLM's latencies, plain step times and how its outputs end.

The sidecar compares with them later.
"""

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from statistics import mean
from typing import Any, Final

import structlog
import yaml
from yarl import URL

from sidecar.analysis.engine.latency import Latency
from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.speed.plain import uncertainty
from sidecar.commands.arguments import (
    base_url,
    duration,
    file_to_write,
    listed,
    share_of_one,
    whole,
    with_vllm_cacert,
    written,
)
from sidecar.commands.waiting import stop_on_signals, unless_stopped
from sidecar.engine.names import Phase
from sidecar.engine.page_source import PageSource, page_source
from sidecar.engine.scrape import Poller
from sidecar.errors import InputError, MeasurementError, ScrapeError, SettingsError
from sidecar.log import redacted
from sidecar.requests.receiver import PluginReceiver
from sidecar.settings import Settings, load_settings
from sidecar.settings.baselines import PlainStepTimes
from specdec_tools.measuring.client import Client
from specdec_tools.measuring.workload import (
    MOST_AT_ONCE,
    RequestOptions,
    add_request_arguments,
    request_options,
)
from specdec_tools.plain.agreement import Agreement, agreement, widened
from specdec_tools.plain.document import plain_steps
from specdec_tools.plain.law_text import law_lines, miss_lines
from specdec_tools.plain.measured import BaselineRun
from specdec_tools.plain.stages import NO_PLUGIN, Stages

HELP = (
    "measure the latencies of a healthy vLLM and its step times without speculation, "
    "and write them as a baseline"
)
_DIGITS: Final = 6
_INCOMPLETE: Final = 3
# Share of a level that the step times must reach: while requests end, fewer run.
_REACHED: Final = 0.7
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_ERROR: Final = 0.02  # relative, in two standard errors
_LONGEST: Final = 1200.0  # seconds, with requests of its own
_BUSY: Final = 0.5  # processes per core before the measurement
_LOOKS: Final = 40  # at these, each so long after the one before
_APART: Final = 0.05  # seconds
_READY: Final = re.compile(r"^procs_running (\d+)$", re.MULTILINE)


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
        help="such as 10m; with --load, about so long at most (default: 60s; 20m with --load)",
    )
    parser.add_argument(
        "--error",
        type=share_of_one,
        default=_ERROR,
        metavar="SHARE",
        help="with --load: end, after six rounds at least, once step times are known to within this"
        f" (default: {_ERROR}, ± 2 %%)",
    )

    context = (
        "with --load: lengths of the prompts in tokens, to which they are cut or filled up; give"
        " the shortest and the longest of your traffic (default: the prompts as they are, and 2048"
        " tokens or 8 times as long)"
    )
    parser.add_argument(
        "--context", type=listed(whole(2**31)), default=(), metavar="N,N", help=context
    )
    parser.add_argument(
        "--plugin-socket",
        type=Path,
        metavar="PATH",
        help="where this vLLM's plug-in sends (SPECDEC_PLUGIN__SOCKET), if it loads it: a socket of"
        " its own; --load needs it, and without --load, how outputs end is then measured, too",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="FILE",
        help="also say whether an earlier baseline agrees (default: the file of --out, if it"
        " exists)",
    )
    parser.add_argument(
        "--out", type=file_to_write, metavar="FILE", help="write to this file, not to the terminal"
    )
    add_request_arguments(parser, "with --load")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if it wrote or printed a baseline, 3 if that lacks what ``--load`` was to measure.

    Returns 1 if there is nothing to write, 2 if the file cannot be written.

    Raises:
        InputError: ``--prompts`` or ``--cacert`` cannot be used, or ``--plugin-socket`` is missing.
        MeasurementError: vLLM's page cannot be read, it speculates despite ``--load``, or it
            answers no request, or no plug-in counts its steps.
        SettingsError: the API key cannot be used.
    """
    if arguments.load and arguments.plugin_socket is None:
        raise InputError(NO_PLUGIN)
    settings = with_vllm_cacert(settings, arguments.cacert)
    url = arguments.url or settings.vllm_url
    seconds: float = arguments.duration or (_LONGEST if arguments.load else 60.0)
    options = request_options(arguments, settings)
    earlier = _earlier(arguments)

    print(f"{'measuring' if arguments.load else 'watching'} for {seconds:g} s", file=sys.stderr)
    measured = asyncio.run(
        measure(
            url,
            settings,
            seconds,
            arguments.load,
            options,
            contexts=arguments.context,
            socket=arguments.plugin_socket,
            error=arguments.error,
        )
    )
    latencies = measured.latencies()
    curves = {model: _beside(model, curve, earlier) for model, curve in measured.curves().items()}
    without = latencies.keys() - curves.keys()
    if arguments.load:
        _say(_unknown_steps(without, measured.drafted))
    lacking = [
        sentence
        for model, curve in curves.items()
        for sentence in _lacking(model, curve, arguments.load, arguments.context)
    ]
    _say(lacking)
    for model, curve in curves.items():
        _say(f"{model}: {note}" for note in _notes(curve))
        _say(_accuracy(model, curve, arguments.error))
        _say((*law_lines(curve), *miss_lines(measured.misses(model, curve))))

    steps = {model: plain_steps(curve, measured.until) for model, curve in curves.items()}
    document: dict[str, Any] = {"plain_steps": steps, "plain_cache": measured.capacities()}
    # What depends on the requests: those that are sent are nobody's, and cut off.
    if not arguments.load:
        document |= {
            "baseline": {
                model: _phases(model, phases) for model, phases in latencies.items() if phases
            },
            "baseline_by_request": {
                model: exact for model, phases in latencies.items() if (exact := _exact(phases))
            },
            "plain_cache": measured.caches(),
            "plain_endings": measured.endings(),
        }
    document = {name: models for name, models in document.items() if models}

    if not document and arguments.load and without:
        return _INCOMPLETE  # why is said above
    if not document:
        print(
            "no requests finished, so there is nothing to write; watch longer, or send traffic",
            file=sys.stderr,
        )
        return 1

    text = f"# Measured over {measured.until - measured.began:.0f} s.\n"
    text += yaml.safe_dump(document, sort_keys=False, default_flow_style=None)

    is_complete = not lacking and not (arguments.load and without)
    code = 0 if is_complete else _INCOMPLETE
    out: Path | None = arguments.out
    if out is None or not written("--out", out, text.encode()):
        print(text, end="")  # do not lose what took so long to measure
        return code if out is None else 2

    but = "" if is_complete else ", but incomplete (see above)"
    print(f"written to {out}{but}; use it with SPECDEC_BASELINE_FILE={out}", file=sys.stderr)
    return code


def _earlier(arguments: argparse.Namespace) -> Mapping[str, PlainStepTimes]:
    """The baseline to compare with, by model; empty if there is none.

    Raises:
        InputError: the file of ``--beside`` is no baseline.
    """
    given: Path | None = arguments.beside
    file = given or arguments.out
    if file is None or (given is None and not file.is_file()):
        return {}

    try:
        return load_settings(None, {"SPECDEC_BASELINE_FILE": str(file)}).measured.plain_steps
    except SettingsError as error:
        if given is None:  # it is about to be replaced
            return {}
        raise InputError(f"--beside={given}: {error}") from None


def _beside(
    model: str, times: PlainStepTimes, earlier: Mapping[str, PlainStepTimes]
) -> PlainStepTimes:
    """The times, with the difference from an earlier baseline in their error; prints it."""
    found = agreement(times, earlier[model]) if model in earlier else None
    if found is None:
        return times
    print(f"{model}: {_agreement_sentence(found)}", file=sys.stderr)
    return widened(times, found)


def _agreement_sentence(found: Agreement) -> str:
    amount = f"{round(100 * found.difference):+d} ± {100 * CONFIDENCE * found.error:.0f} %"
    if found.holds:
        return f"agrees with the earlier baseline: step times differ by {amount}"
    return (
        f"does not agree with the earlier baseline: step times differ by {amount}, so the machine's"
        " speed or vLLM's configuration has changed; half of the difference is in the new"
        " baseline's error. Measure once more on a quiet machine"
    )


async def measure(
    url: str,
    settings: Settings,
    seconds: float,
    loads: Sequence[int],
    options: RequestOptions,
    *,
    contexts: Sequence[int] = (),
    socket: Path | None = None,
    error: float = _ERROR,
) -> BaselineRun:
    """Polls the vLLM at ``url`` for ``seconds``.

    The ``loads`` (concurrent requests) and ``contexts`` (tokens of prompts), if any, share this
    time equally; it ends earlier once step times are known to within ``error``. ``socket`` is
    where its plug-in sends, if it has one.

    Raises:
        MeasurementError: vLLM's first page cannot be read, vLLM speculates although ``loads``
            measure plain decoding, or it does not answer requests.
    """
    measured = BaselineRun()
    if loads and URL(url).host in _LOCAL:
        measured.machine_load = await _machine_load()
    scrape = settings.model_copy(update={"vllm_url": url})
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(page_source(scrape, settings.limits))
        if socket is not None:
            receiver = PluginReceiver(socket, measured.receive, structlog.get_logger("sidecar"))
            await stack.enter_async_context(receiver)
        await _check(source, url, loads)

        poller = Poller(source, settings, measured)
        if loads:
            client = await stack.enter_async_context(Client(url, options))
            stages = Stages(client, options, measured, poller, source)
            work = stages.run(seconds, loads, contexts, error)
        else:
            work = _watch(poller, seconds)
        # After a signal, what was measured so far is written.
        await unless_stopped(work, stop_on_signals())
        await poller.poll()  # once more, at the very end

    return measured


async def _check(source: PageSource, url: str, loads: Sequence[int]) -> None:
    """Reads a page before it waits or sends requests in vain."""
    try:
        page = await source.next()
    except ScrapeError as error:
        fault = f"cannot read vLLM's metrics at {redacted(url)} ({error.reason}: {error})"
        remedy = f"`SPECDEC_VLLM_URL={redacted(url)} specdec-sidecar check` shows why"
        raise MeasurementError(f"{fault}; {remedy}") from None

    if loads and any(engine.speculates for engine in page.engines):
        raise MeasurementError(f"{redacted(url)} speculates: --load needs a vLLM that does not")


async def _watch(poller: Poller, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(poller.run(), seconds)


async def _machine_load() -> float | None:
    """Other processes that are ready to run, per core of this machine; None if it does not tell.

    vLLM has no requests meanwhile. The load average would count what it did to start.
    """
    others = []
    for _ in range(_LOOKS):
        await asyncio.sleep(_APART)
        found = _ready_to_run()
        if found is None:
            return None
        others.append(found - 1)  # but this one
    return max(mean(others), 0.0) / (os.cpu_count() or 1)


def _ready_to_run() -> int | None:
    """The processes of this machine that run or are ready to, as Linux tells."""
    with suppress(OSError):
        found = _READY.search(Path("/proc/stat").read_text())
        return int(found[1]) if found else None
    return None


def _say(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        print(sentence, file=sys.stderr)


def _unknown_steps(without: Iterable[str], drafted: Container[str]) -> Iterator[str]:
    """Why models ``without`` plain step times have none."""
    for model in sorted(without):
        why = "the measurement was too short, or the plug-in did not count"
        if model in drafted:
            why = "it speculates"
        yield f"{model}: no plain step times ({why})"


def _lacking(
    model: str, times: PlainStepTimes, loads: Sequence[int], contexts: Sequence[int]
) -> Iterator[str]:
    """What requests were sent for, at these loads and contexts, and the times do not tell."""
    low = _REACHED * times.running[0]
    high = times.running[-1] / _REACHED
    if missed := ", ".join(str(load) for load in loads if not low <= load <= high):
        yield f"{model}: no step times with {missed} running: measure longer, with --duration"

    if not times.context_seconds and len(set(contexts)) != 1:
        yield (
            f"{model}: the measurement was too short or too noisy to tell what a longer context"
            " costs, or vLLM took no longer prompts, so a speedup will be known only at about one"
            " context: measure longer, with --duration"
        )


def _notes(times: PlainStepTimes) -> Iterator[str]:
    """What else the times do not tell, or not well."""
    if times.prefill_seconds is None:
        yield "no prompts of more than 64 tokens: what prefill costs is unknown"

    load = times.machine_load
    if load is not None and load > _BUSY:
        yield (
            f"this machine was busy before: {load:.1f} processes per core were ready to run, so the"
            " step times may be too long"
        )


def _accuracy(model: str, times: PlainStepTimes, wanted: float) -> Iterator[str]:
    """How well step times are known, and what is missing."""
    known = CONFIDENCE * uncertainty(times)
    yield (
        f"{model}: step times are known to ± {100 * known:.1f} % at the worst load and context, by"
        f" {len(times.rounds)} rounds"
    )
    if known > wanted:
        yield (
            f"{model}: ± {100 * wanted:.1f} % was asked for with --error: measure longer, with"
            " --duration, or on a machine that does nothing else"
        )


def _exact(latencies: Mapping[Phase, Latency]) -> list[str]:
    """The phases that are known by the requests' own times."""
    return [str(phase) for phase, known in latencies.items() if known.is_exact]


def _phases(model: str, latencies: Mapping[Phase, Latency]) -> dict[str, dict[str, float]]:
    """The latencies of a model's phases, in seconds.

    Prints the phases for which vLLM's buckets are too coarse.
    """
    coarse = [phase for phase, known in latencies.items() if known.gap_seconds is None]
    if coarse:
        where = f"{model}: {', '.join(coarse)}"
        print(f"{where}: interpolated, since P99 is in vLLM's first bucket", file=sys.stderr)

    return {
        str(phase): {
            f"p{quantile * 100:.0f}": round(value, _DIGITS)
            for quantile, value in known.quantiles.items()
        }
        for phase, known in latencies.items()
    }
