"""``sweep``: measure the times and the acceptance of one vLLM by temperature and load."""

import argparse
import asyncio
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final, Literal

from sidecar.analysis.advice import advise
from sidecar.analysis.evidence import Evidence
from sidecar.analysis.verdict import Judgement, Verdict, judge
from sidecar.commands.arguments import (
    base_url,
    duration,
    file_to_write,
    listed,
    number_up_to,
    whole,
    written,
)
from sidecar.commands.load.measure import SweepOptions, measure_sweep
from sidecar.commands.load.metrics import ACCEPTANCE, METRICS, TIMES
from sidecar.commands.load.sweep_result import (
    LevelResult,
    Measurement,
    SweepLevel,
    SweepResult,
    encode,
)
from sidecar.commands.load.workload import MOST_AT_ONCE, add_request_arguments, request_options
from sidecar.commands.waiting import stop_on_signals
from sidecar.settings import Settings
from sidecar.settings.groups import Thresholds
from sidecar.wording.notes import advice_sentences
from sidecar.wording.numbers import aligned

HELP = "measure the times and the acceptance of a vLLM by temperature and load, for `compare`"
_MOST: Final = 10_000
# The bound is just below 0, so that 0 is included.
_TEMPERATURE: Final = number_up_to(10.0, "temperatures from 0 to 10", above=-math.ulp(0))

_RULE: Final = (
    "Verdicts go by the acceptance rate, not by time: "
    "a rule of thumb for drafts made token by token "
    "(net_positive from {:g}, net_negative below {:g})."
)
_HOW_TO_TELL: Final = (
    "To find out whether it pays: `sweep --rounds 8 --save FILE` with and without speculation, "
    "then `specdec-sidecar compare WITHOUT.json WITH.json`."
)
_NO_DRAFTS: Final = "neither the replies nor vLLM's counters show any drafts"
_OTHERS: Final = "vLLM also served other clients, which affects the times"
_OTHERS_DRAFTED: Final = (
    "the acceptance is unknown, since vLLM's counters include the drafts of other clients "
    "(measure without them, or start vLLM 0.29 or later with "
    "--per-request-spec-decode-metrics summary)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sweep``."""
    parser.add_argument(
        "--url", type=base_url, help="the vLLM to measure (default: the setting vllm_url)"
    )
    temperatures, default = listed(_TEMPERATURE), "0,0.3,0.5,0.7,1"
    parser.add_argument(
        "--temperatures",
        type=temperatures,
        default=default,
        metavar="T,T",
        help=f"default: {default}",
    )
    concurrency, in_flight = listed(whole(MOST_AT_ONCE)), "requests in flight (default: 1,8)"
    parser.add_argument(
        "--concurrency", type=concurrency, default="1,8", metavar="N,N", help=in_flight
    )
    requests = "per level and round (default: 32)"
    parser.add_argument("--requests", type=whole(_MOST), default=32, metavar="N", help=requests)
    rounds = (
        "repeat all levels; `compare` needs 4 or more to estimate how much runs differ (default: 1)"
    )
    parser.add_argument("--rounds", type=whole(_MOST), default=1, metavar="N", help=rounds)
    end = "stop after this long and report what was measured (default: 30m)"
    parser.add_argument("--duration", type=duration, default=1800.0, metavar="TIME", help=end)
    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")
    parser.add_argument(
        "--save", type=file_to_write, metavar="FILE", help="also write the result, for `compare`"
    )
    add_request_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if everything was measured and, with ``--save``, saved; else 1.

    Raises:
        InputError: ``--prompts`` cannot be used.
        MeasurementError: the server answers no request.
        SettingsError: the API key cannot be used.
    """
    concurrency = sorted(set(arguments.concurrency))
    options = SweepOptions(
        url=arguments.url or settings.vllm_url,
        requests=request_options(arguments, settings),
        levels=tuple(
            SweepLevel(at, number)
            for at in dict.fromkeys(arguments.temperatures)
            for number in concurrency
        ),
        count=arguments.requests,
        rounds=arguments.rounds,
        seconds=arguments.duration,
        settings=settings,
    )
    result = asyncio.run(_run(options))
    summaries = [summarize(level, settings.thresholds) for level in result.levels]
    if arguments.json:
        about = {
            name: getattr(result, name)
            for name in ("model", "max_tokens", "rounds", "complete", "fault")
        }
        document = {**about, "levels": [asdict(level) for level in summaries]}
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        print("\n".join(text(result, summaries, settings.thresholds)))

    saved = arguments.save is None or written("--save", arguments.save, encode(result))
    return 0 if saved and result.complete else 1


async def _run(options: SweepOptions) -> SweepResult:
    clock = asyncio.get_running_loop().time
    begun, total = clock(), len(options.levels) * options.rounds

    def on_begin(ended: int, level: SweepLevel) -> None:
        left = f", about {(clock() - begun) / ended * (total - ended):.0f} s left" if ended else ""
        print(f"measuring {level} ({ended + 1} of {total}{left})", file=sys.stderr)

    return await measure_sweep(options, stop_on_signals(), on_begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """One level's metrics, with the verdict on its acceptance.

    ``acceptance_from`` is the source: the ``replies`` themselves or vLLM's ``counters``. ``advice``
    is on the number of tokens.
    """

    level: SweepLevel
    acceptance_from: Literal["replies", "counters", "none"]
    position_rates: tuple[float, ...]
    metrics: Mapping[str, float | None]  # by name
    verdict: Verdict
    advice: str | None
    caveats: tuple[str, ...]


def summarize(result: LevelResult, thresholds: Thresholds) -> LevelSummary:
    """Judges a level by the rule of thumb on the acceptance rate.

    The sidecar judges live traffic without a baseline in the same way. Of the volume thresholds
    only ``min_requests`` applies, since the sweep itself decides how much is drafted.
    """
    measured = result.whole
    judgement = judge(Evidence(window=measured.acceptance), thresholds)
    advice = None
    if judgement.judged is not None:
        advice = advise(judgement.evidence, judgement.judged, thresholds)

    return LevelSummary(
        level=result.level,
        acceptance_from=measured.source,
        position_rates=measured.acceptance.position_rates,
        metrics={name: metric.value(measured) for name, metric in METRICS.items()},
        verdict=judgement.verdict,
        advice=advice_sentences(advice) or None,
        caveats=tuple(_caveats(measured, judgement)),
    )


def _caveats(measured: Measurement, judgement: Judgement) -> Iterator[str]:
    if measured.samples and measured.source == "none":
        others_drafted = measured.counted is not None and measured.counted.draft_tokens
        yield _OTHERS_DRAFTED if others_drafted else _NO_DRAFTS
    if judgement.gate is not None:
        yield f"no verdict from fewer than {judgement.gate.value:g} requests (raise --requests)"
    if measured.others:
        yield _OTHERS


def text(
    result: SweepResult, summaries: Sequence[LevelSummary], thresholds: Thresholds
) -> Iterator[str]:
    """A table of times in milliseconds, and one of acceptance with the verdicts.

    After them come the advice and the caveats.
    """
    yield f"model {result.model or 'unknown'}; times in milliseconds"
    yield ""
    yield from _table(summaries, tuple(TIMES))
    yield ""

    if any(one.acceptance_from != "none" for one in summaries):
        yield from _table(summaries, (*ACCEPTANCE, "source", "verdict"))
        yield ""
        yield _RULE.format(thresholds.acceptance_break_even, thresholds.acceptance_net_negative)
        yield from (f"{one.level}: {one.advice}" for one in summaries if one.advice is not None)
    yield from _notes(result, summaries)
    yield _HOW_TO_TELL


def _table(summaries: Sequence[LevelSummary], columns: Sequence[str]) -> list[str]:
    """The levels with these columns.

    A column name that starts like the one before is cut to its last word.
    """
    columns = ("temperature", "concurrency", *columns)
    shown = [
        name.split()[-1] if name[:4] == before[:4] else name
        for before, name in pairwise(("", *columns))
    ]
    rows = [[cells[column] for column in columns] for cells in map(_cells, summaries)]
    return aligned(shown, rows)


def _cells(one: LevelSummary) -> Mapping[str, str]:
    metrics = {name: METRICS[name].shown(value) for name, value in one.metrics.items()}
    level = {"temperature": f"{one.level.temperature:g}", "concurrency": f"{one.level.concurrency}"}
    return {**level, **metrics, "source": one.acceptance_from, "verdict": one.verdict}


def _notes(result: SweepResult, summaries: Sequence[LevelSummary]) -> Iterator[str]:
    """Each caveat with the levels that it is for, failed requests and an early end."""
    caveats = defaultdict(list)
    for level in summaries:
        for caveat in level.caveats:
            caveats[caveat].append(str(level.level))
    for caveat, where in caveats.items():
        yield f"{caveat}: {'every level' if len(where) == len(summaries) else '; '.join(where)}"
    if result.fault is not None:
        yield f"requests failed; the last error: {result.fault}"
    if not result.complete:
        yield "The sweep is incomplete: it ended before all levels were measured."
