"""``sweep``: measure a vLLM by temperature and load, and say whether speculation pays there."""

import argparse
import asyncio
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

from sidecar.analysis.advice import advise
from sidecar.analysis.evidence import Estimate, Evidence
from sidecar.analysis.verdict import Judgement, Verdict, judge
from sidecar.commands.arguments import base_url, duration, file_to_write, listed, number_up_to, whole, written
from sidecar.commands.load.measure import SweepOptions, measure_sweep
from sidecar.commands.load.metrics import METRICS, Cells, Interval, Values, cells, relative_change, table, values
from sidecar.commands.load.sweep_result import LevelMeasurement, LevelResult, SweepResult, encode
from sidecar.commands.load.workload import (
    MOST_AT_ONCE,
    Load,
    SweepLevel,
    Workload,
    add_request_arguments,
    alone,
    levels,
    request_options,
)
from sidecar.commands.waiting import stop_on_signals
from sidecar.settings import Settings
from sidecar.settings.groups import Thresholds
from sidecar.wording.notes import advice_sentences, judgement_note

HELP = "measure a vLLM by temperature and load, and say whether speculation pays"
_CONFIDENCE: Final = 0.95
_MOST: Final = 10_000
_TEMPERATURE: Final = number_up_to(10.0, "temperatures from 0 to 10", above=-math.ulp(0))  # 0 included

_MEDIAN, _TAIL = METRICS["TPOT P50"], METRICS["TPOT P99"]
_ACCEPTANCE: Final = tuple(METRICS)[tuple(METRICS).index("draft tokens") :]
_TIMES: Final = tuple(name for name in METRICS if name not in _ACCEPTANCE)
_ACTIONS: Final[Mapping[Verdict, str]] = {
    Verdict.NET_NEGATIVE: "stop: speculation costs more than it saves here",
    Verdict.BREAK_EVEN: "measure P99 under your own load before you decide",
    Verdict.NET_POSITIVE: "confirm under your own load, then ship",
}
_OTHERS_SERVED: Final = (
    "vLLM served other clients, and its counters include their drafts. Measure without them, or start "
    "vLLM (0.29 or later) with --per-request-spec-decode-metrics summary"
)
_NOTHING_DRAFTED: Final = "neither the replies nor vLLM's counters show any drafts: is speculation on?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sweep``."""
    parser.add_argument("--url", type=base_url, help="the vLLM to measure (default: the setting vllm_url)")
    parser.add_argument("--baseline-url", type=base_url, metavar="URL", help="the same model without speculation")
    parser.add_argument("--temperatures", type=listed(_TEMPERATURE), metavar="T,T", help="default: 0,0.3,0.5,0.7,1")
    mix = "also measure a mix, such as 0.1:50,1:50, and each of its temperatures alone; repeatable"
    parser.add_argument("--mix", type=_mix, action="append", metavar="T:WEIGHT,…", help=mix)
    in_flight = "requests in flight (default: 1,8)"
    parser.add_argument("--concurrency", type=listed(whole(MOST_AT_ONCE)), metavar="N,N", help=in_flight)
    rate = listed(number_up_to(MOST_AT_ONCE, f"requests per second up to {MOST_AT_ONCE}, such as 2,5"))
    parser.add_argument("--rate", type=rate, metavar="R,R", help="Poisson arrivals: requests per second")
    requests = "per level and round (default: 32)"
    parser.add_argument("--requests", type=whole(_MOST), default=32, metavar="N", help=requests)
    rounds = "repeat all levels; `compare` needs 4 or more to estimate how much runs differ (default: 1)"
    parser.add_argument("--rounds", type=whole(_MOST), default=1, metavar="N", help=rounds)
    end = "stop after this long and report what was measured (default: 30m)"
    parser.add_argument("--duration", type=duration, default=1800.0, metavar="TIME", help=end)
    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")
    parser.add_argument("--save", type=file_to_write, metavar="FILE", help="also write the result, for `compare`")
    add_request_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if everything was measured and, with ``--save``, saved; else 1.

    Raises:
        InputError: ``--prompts`` cannot be used.
        MeasurementError: a server answers no request, or the baseline speculates.
        SettingsError: the API key cannot be used.
    """
    result = asyncio.run(_run(_options(arguments, settings)))
    summaries = summarize(result, settings.thresholds)
    if arguments.json:
        about = {name: getattr(result, name) for name in ("model", "max_tokens", "rounds", "complete", "faults")}
        print(json.dumps({**about, "levels": [asdict(level) for level in summaries]}, indent=2, allow_nan=False))
    else:
        print("\n".join(text(result, summaries)))
    saved = arguments.save is None or written("--save", arguments.save, encode(result))
    return 0 if saved and result.complete else 1


def _options(arguments: argparse.Namespace, settings: Settings) -> SweepOptions:
    mixes = arguments.mix or ()
    concurrency = arguments.concurrency or (() if arguments.rate else (1, 8))
    baseline = () if arguments.baseline_url is None else (arguments.baseline_url,)
    return SweepOptions(
        servers=(arguments.url or settings.vllm_url, *baseline),
        requests=request_options(arguments, settings),
        levels=levels(
            arguments.temperatures or (() if mixes else (0.0, 0.3, 0.5, 0.7, 1.0)),
            mixes,
            (*(Load(at_once=number) for number in concurrency), *(Load(rate=rate) for rate in arguments.rate or ())),
        ),
        count=arguments.requests,
        rounds=arguments.rounds,
        seconds=arguments.duration,
        settings=settings,
    )


def _mix(text: str) -> Workload:
    """Parses ``0.1:50,1.0:50`` into temperatures and their weights."""
    pairs = [part.partition(":") for part in text.split(",")]
    weight = number_up_to(1e9, "two temperatures or more with weights above 0, such as 0.1:50,1.0:50")
    weights = {_TEMPERATURE(temperature): weight(value) for temperature, _, value in pairs}
    if len(weights) < 2:
        weight("")
    return Workload(tuple(sorted(weights.items())))


async def _run(options: SweepOptions) -> SweepResult:
    clock = asyncio.get_running_loop().time
    begun, ended, current = clock(), 0, ""

    def on_end(level: str) -> None:
        nonlocal ended, current
        if level != current:
            left = f", about {(clock() - begun) / ended * (options.total - ended):.0f} s left" if ended else ""
            print(f"{ended}/{options.total} requests done{left}; measuring {level}", file=sys.stderr)
        ended, current = ended + 1, level

    return await measure_sweep(options, stop_on_signals(), on_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """One level: the metrics of the server, of a mix's temperatures, and of the baseline if there is one.

    ``acceptance_from`` is the source: the ``replies`` themselves or vLLM's ``counters``. ``other_requests``: vLLM also
    served other clients. ``changes`` are of TPOT P99 at a mix's temperatures: in the mix / alone at that load - 1.
    ``speedup`` is the baseline's median TPOT / this server's: above 1, speculation is faster. ``action`` follows from
    the verdict, ``advice`` is on the number of tokens.
    """

    level: SweepLevel
    complete: bool
    other_requests: bool
    acceptance_from: Literal["replies", "counters", "none"]
    position_rates: tuple[float, ...]
    speculating: Values
    in_mix: Mapping[float, Values]
    changes: Mapping[float, Interval | None]
    baseline: Values | None
    speedup: Interval | None
    verdict: Verdict
    action: str
    advice: str | None


def summarize(result: SweepResult, thresholds: Thresholds) -> tuple[LevelSummary, ...]:
    """Judges every level: by the speedup if a baseline was measured, else by the acceptance, as for live traffic.

    Of the volume thresholds only ``min_requests`` applies, since the sweep itself decides how much is drafted.
    """
    measured = {level.level: level.speculating for level in result.levels}
    return tuple(_summary(level, measured, thresholds) for level in result.levels)


def _summary(
    result: LevelResult, measured: Mapping[SweepLevel, LevelMeasurement], thresholds: Thresholds
) -> LevelSummary:
    level, ours, speedup = result.level, result.speculating, _speedup(result)
    known = None if speedup is None or speedup.error is None else Estimate(speedup.value, speedup.error / 2)
    judgement = judge(Evidence(window=ours.acceptance, speedup=known), thresholds)
    mix = level.workload.weights if level.workload.temperature is None else ()
    parts = {temperature: ours.at_temperature(temperature) for temperature, _ in mix}
    return LevelSummary(
        level=level,
        complete=result.complete,
        other_requests=ours.others,
        acceptance_from=ours.source,
        position_rates=ours.acceptance.position_rates,
        speculating=values(ours),
        # Failed requests have no temperature.
        in_mix={temperature: {**values(part), "failed": None} for temperature, part in parts.items()},
        changes={
            temperature: _change(part, measured.get(SweepLevel(alone(temperature), level.load)), level.load)
            for temperature, part in parts.items()
        },
        baseline=None if result.baseline is None else values(result.baseline),
        speedup=speedup,
        verdict=judgement.verdict,
        action=_action(judgement.verdict, ours, thresholds.min_requests),
        advice=_token_advice(judgement, thresholds),
    )


def _token_advice(judgement: Judgement, thresholds: Thresholds) -> str | None:
    if judgement.judged is None or judgement.by_speedup is Verdict.NET_POSITIVE:
        return None
    advice = advise(judgement.evidence, judgement.judged, thresholds)
    return advice_sentences(advice) or judgement_note(judgement) or None


def _action(verdict: Verdict, ours: LevelMeasurement, needed: int) -> str:
    if ours.samples and ours.source == "none":
        return _OTHERS_SERVED if ours.counted is not None and ours.counted.draft_tokens else _NOTHING_DRAFTED
    return _ACTIONS.get(verdict, f"at least {needed} requests are needed: raise --requests")


def _change(inside: LevelMeasurement, apart: LevelMeasurement | None, load: Load) -> Interval | None:
    """How much slower requests of one temperature are in a mix; None if it was not also measured ``apart``."""
    if apart is None:
        return None
    return relative_change(*(_TAIL.interval_at(load, measurement, _CONFIDENCE) for measurement in (apart, inside)))


def _speedup(result: LevelResult) -> Interval | None:
    if result.baseline is None:
        return None
    servers, load = (result.speculating, result.baseline), result.level.load
    gain = relative_change(*(_MEDIAN.interval_at(load, server, _CONFIDENCE) for server in servers))
    return None if gain is None else Interval(1 + gain.value, gain.error)


def text(result: SweepResult, summaries: Sequence[LevelSummary]) -> Iterator[str]:
    """A table of times in milliseconds, one of acceptance, the verdicts and the caveats."""
    compared = any(level.baseline is not None for level in summaries)
    yield f"model {result.model or 'unknown'}; times in milliseconds"
    yield ""
    columns = ("server", *_TIMES) if compared else _TIMES
    yield from table([(level.level, _rows(level, level.baseline)) for level in summaries], columns)
    yield ""
    columns = (*_ACCEPTANCE, *(("source", "speedup", "verdict") if compared else ("source", "verdict")))
    yield from table([(level.level, _rows(level, None)) for level in summaries], columns)
    yield ""
    yield from _advice(summaries)
    yield from _caveats(result, summaries)


def _rows(level: LevelSummary, baseline: Values | None) -> Iterator[Cells]:
    """The server's row, those of a mix's temperatures, and the baseline's."""
    speedup = "-"
    if level.speedup is not None:
        error = level.speedup.error
        speedup = f"{level.speedup.value:.2f}x" + ("" if error is None else f"±{error:.2f}")
    judgement = {"source": level.acceptance_from, "speedup": speedup, "verdict": level.verdict}
    yield {**cells(level.speculating), **judgement, "server": "speculating"}
    for temperature, inside in level.in_mix.items():
        yield {**cells(inside), "temperature": f"  {temperature:g}"}
    if baseline is not None:
        yield {**cells(baseline), "server": "baseline"}


def _advice(summaries: Sequence[LevelSummary]) -> Iterator[str]:
    """What to do, each with the levels that it is for; advice on the number of tokens; what a mix changes."""
    actions = defaultdict(list)
    for level in summaries:
        actions[f"{level.verdict}: {level.action}"].append(str(level.level))
    for action, where in actions.items():
        yield action
        yield f"  {'; '.join(where)}"
    yield from (f"{level.level}: {level.advice}" for level in summaries if level.advice is not None)
    for level in summaries:
        for temperature, change in level.changes.items():
            if change is not None:
                error = "not precise: raise --requests, P99 needs about 800"
                error = error if change.error is None else f"±{change.error:.1%}"
                slower = f"{change.value:+.1%} ({error}) compared with temperature {temperature:g} alone"
                yield f"{level.level}: TPOT P99 at temperature {temperature:g} {slower}"


def _caveats(result: SweepResult, summaries: Sequence[LevelSummary]) -> Iterator[str]:
    speedups = [level.speedup for level in summaries if level.speedup is not None]
    if any(speedup.error is None or abs(speedup.value - 1) <= speedup.error for speedup in speedups):
        yield "Some speedups are smaller than their error: raise --requests or --rounds."
    for level in summaries:
        if level.other_requests:
            yield f"{level.level}: vLLM also served other clients, so its counters and times include their requests"
    for server, fault in result.faults.items():
        yield f"{server}: requests failed; the last error: {fault}"
    if not result.complete:
        yield "The sweep is incomplete: it ended before all levels were measured."
