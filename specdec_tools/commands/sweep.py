"""``sweep``: measure the times and the acceptance of a vLLM by temperature and load.

With ``--against``, two of them take turns; with ``--mix``, temperatures are measured in company and
alone.
"""

import argparse
import asyncio
import json
import math
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final, Literal

from sidecar.analysis.evidence import CONFIDENCE, Evidence
from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.verdict import judge
from sidecar.commands.arguments import (
    base_url,
    duration,
    file_to_write,
    listed,
    number_up_to,
    whole,
    with_vllm_cacert,
    written,
)
from sidecar.commands.waiting import stop_on_signals
from sidecar.errors import InputError
from sidecar.log import redacted
from sidecar.settings import Settings
from sidecar.settings.groups import Thresholds
from sidecar.wording.numbers import aligned
from specdec_tools.measuring.comparison import Comparison, compare, comparison_text
from specdec_tools.measuring.machines import are_one_machine
from specdec_tools.measuring.measure import SweepOptions, measure_in_turns
from specdec_tools.measuring.metrics import ACCEPTANCE, LEAST_BATCHES, METRICS, TIMES
from specdec_tools.measuring.mixture import check_mix, mix_changes, mix_text, mixed_levels
from specdec_tools.measuring.sweep_result import (
    LevelResult,
    Measurement,
    SweepLevel,
    SweepResult,
    encode,
)
from specdec_tools.measuring.workload import MOST_AT_ONCE, add_request_arguments, request_options

HELP = "measure the times and the acceptance of a vLLM by temperature and load, for `compare`"
_MOST: Final = 10_000
_TEMPERATURES: Final = (0.0, 0.3, 0.5, 0.7, 1.0)
# The bound is just below 0, so that 0 is included.
_TEMPERATURE: Final = number_up_to(10.0, "temperatures from 0 to 10", above=-math.ulp(0))

_RULE: Final = (
    "Verdicts go by the acceptance rate, not by time: "
    "a rule of thumb for drafts made token by token "
    "(net_positive from {:g}, net_negative below {:g})."
)
_HOW_TO_TELL: Final = (
    "To find out whether it pays: `sweep --rounds 8 --against URL` with the URL of a vLLM without "
    "speculation; or `sweep --rounds 8 --save FILE` with and without it, "
    "then `specdec-sidecar compare WITHOUT.json WITH.json`."
)
_WHAT_TO_CHANGE: Final = (
    "What to change depends on how this vLLM drafts, which a sweep does not know: "
    "`specdec-sidecar report` says it."
)
_TOO_FEW_ROUNDS: Final = (
    f"--rounds {{}}: too few to tell a difference from chance, which takes {LEAST_BATCHES} or more"
)
_NO_DRAFTS: Final = "neither the replies nor vLLM's counters show any drafts"
_INCOMPLETE: Final = (
    "The sweep is incomplete: it was stopped, or its --duration was over, before all levels and "
    "rounds were measured."
)
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
    parser.add_argument(
        "--against",
        type=base_url,
        metavar="URL",
        help="another vLLM that takes turns with it, round by round, for a closer comparison",
    )

    default = ",".join(f"{temperature:g}" for temperature in _TEMPERATURES)
    parser.add_argument(
        "--temperatures",
        type=listed(_TEMPERATURE),
        metavar="T,T",
        help=f"default: {default}, with --mix none",
    )
    parser.add_argument(
        "--mix",
        type=_mix,
        metavar="T:W,T:W",
        help=(
            "temperatures with weights: measure their requests together, and those of each "
            "temperature alone, such as 0:60,1:40"
        ),
    )

    parser.add_argument(
        "--concurrency",
        type=listed(whole(MOST_AT_ONCE)),
        default="1,8",
        metavar="N,N",
        help="requests in flight (default: 1,8)",
    )
    parser.add_argument(
        "--requests",
        type=whole(_MOST),
        default=32,
        metavar="N",
        help="per level and round (default: 32)",
    )
    parser.add_argument(
        "--rounds",
        type=whole(_MOST),
        metavar="N",
        help=(
            f"repeat all levels; a comparison needs {LEAST_BATCHES} or more to estimate how much "
            f"runs differ (default: 1, with --against or --mix {LEAST_BATCHES})"
        ),
    )
    parser.add_argument(
        "--duration",
        type=duration,
        default=1800.0,
        metavar="TIME",
        help="stop after this long and report what was measured (default: 30m)",
    )

    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")
    parser.add_argument(
        "--save", type=file_to_write, metavar="FILE", help="also write the result, for `compare`"
    )
    parser.add_argument(
        "--save-against",
        type=file_to_write,
        metavar="FILE",
        help="with --against: also write its result, for `compare`",
    )

    parser.add_argument(
        "--same-machine",
        action="store_true",
        help="with --against: both run on one machine and GPU (told where they share this host's)",
    )
    parser.add_argument(
        "--swap",
        action="store_true",
        help="with --against: measure nothing, and print the two sweeps that tell the servers from "
        "their machines",
    )

    add_request_arguments(parser)


def _mix(text: str) -> tuple[tuple[float, float], ...]:
    """Parses ``0:60,1:40`` into temperatures and their weights."""
    weight = number_up_to(1e9, "temperatures with weights above 0, such as 0:60,1:40")
    weights: dict[float, float] = {}
    for part in text.split(","):
        temperature, _, given = part.partition(":")
        weights[_TEMPERATURE(temperature)] = weight(given)
    if len(weights) < 2:
        raise argparse.ArgumentTypeError("expected two temperatures or more, such as 0:60,1:40")
    return tuple(sorted(weights.items()))


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if everything was measured and, with ``--save``, saved; else 1.

    Raises:
        InputError: ``--prompts`` or ``--cacert`` cannot be used, or the arguments do not fit
            together.
        MeasurementError: a server answers no request.
        SettingsError: the API key cannot be used.
    """
    if arguments.save_against is not None and arguments.against is None:
        raise InputError("--save-against: needs --against")
    if (arguments.same_machine or arguments.swap) and arguments.against is None:
        raise InputError("--same-machine and --swap: need --against")

    options = _options(arguments, with_vllm_cacert(settings, arguments.cacert))
    if arguments.swap:
        print("\n".join(_swap_text(options, arguments)))
        return 0
    if _is_comparing(arguments) and options.rounds < LEAST_BATCHES:
        print(_TOO_FEW_ROUNDS.format(options.rounds), file=sys.stderr)
    others = () if arguments.against is None else (arguments.against,)
    is_one = arguments.same_machine or any(are_one_machine(options.url, one) for one in others)
    result, *against = asyncio.run(_run(options, (options.url, *others), one_machine=is_one))
    comparison = _comparison_with(result, against, (arguments.against, options.url))
    is_timed = bool(against) and not any(_drafts(one) for one in against)
    summaries = [
        summarize(level, settings.thresholds, is_timed=is_timed) for level in result.levels
    ]
    if arguments.json:
        document = _document(result, summaries)
        if comparison is not None:
            document["comparison"] = asdict(comparison)
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        print("\n".join(_everything(result, summaries, comparison, settings.thresholds)))

    files = [("--save", arguments.save, result)]
    files += [("--save-against", arguments.save_against, one) for one in against]
    saved = [file is None or written(name, file, encode(one)) for name, file, one in files]
    return 0 if all(saved) and all(one.complete for one in (result, *against)) else 1


def _options(arguments: argparse.Namespace, settings: Settings) -> SweepOptions:
    concurrency = sorted(set(arguments.concurrency))
    default = _TEMPERATURES if arguments.mix is None else ()
    temperatures = dict.fromkeys(arguments.temperatures or default)
    levels = [SweepLevel(at, number) for at in temperatures for number in concurrency]
    if arguments.mix is not None:
        levels += mixed_levels(arguments.mix, concurrency)
        check_mix(arguments.mix, arguments.requests)

    return SweepOptions(
        url=arguments.url or settings.vllm_url,
        requests=request_options(arguments, settings),
        levels=tuple(levels),
        count=arguments.requests,
        rounds=arguments.rounds or (LEAST_BATCHES if _is_comparing(arguments) else 1),
        seconds=arguments.duration,
        settings=settings,
    )


def _is_comparing(arguments: argparse.Namespace) -> bool:
    """Whether the sweep itself says what differs, and not only what `compare` reads later."""
    return arguments.against is not None or arguments.mix is not None


def _swap_text(options: SweepOptions, arguments: argparse.Namespace) -> Iterator[str]:
    """The two sweeps and what compares them; passwords in addresses are left out."""
    urls = (redacted(options.url), redacted(arguments.against))
    given = [
        f"--requests {options.count}",
        f"--rounds {options.rounds}",
        f"--max-tokens {options.requests.max_tokens}",
        f"--concurrency {','.join(map(str, arguments.concurrency))}",
    ]
    if arguments.temperatures:
        given.append(f"--temperatures {','.join(f'{one:g}' for one in arguments.temperatures)}")
    if arguments.mix is not None:
        weights = (f"{temperature:g}:{weight:g}" for temperature, weight in arguments.mix)
        given.append(f"--mix {','.join(weights)}")
    given.append(f"--duration {arguments.duration:g}s")
    for name in ("model", "endpoint", "prompts", "api_key_env", "cacert"):
        value = getattr(arguments, name)
        if value is not None:
            given.append(f"--{name.replace('_', '-')} {shlex.quote(str(value))}")
    if arguments.extra_body:
        given.append(f"--extra-body {shlex.quote(json.dumps(arguments.extra_body))}")

    def command(tested: str, against: str, number: int) -> str:
        return (
            f"specdec-sidecar sweep --url {tested} --against {against} {' '.join(given)} "
            f"--save tested{number}.json --save-against against{number}.json"
        )

    yield "1. Measure both as they are:"
    yield f"   {command(urls[0], urls[1], 1)}"
    yield f"2. Swap them: start what runs at {urls[0]} in the place of {urls[1]}, and the other way"
    yield "   round, each with its own options. Measure again, with the addresses swapped:"
    yield f"   {command(urls[1], urls[0], 2)}"
    yield "3. Compare: each server has run on each machine."
    yield (
        "   specdec-sidecar compare against1.json tested1.json --swapped against2.json tested2.json"
    )


async def _run(
    options: SweepOptions, urls: Sequence[str], *, one_machine: bool
) -> tuple[SweepResult, ...]:
    clock = asyncio.get_running_loop().time
    begun = clock()
    total = len(options.levels) * options.rounds

    def on_begin(ended: int, level: SweepLevel) -> None:
        left = f", about {(clock() - begun) / ended * (total - ended):.0f} s left" if ended else ""
        print(f"measuring {level} ({ended + 1} of {total}{left})", file=sys.stderr)

    stop = stop_on_signals()
    return await measure_in_turns(options, urls, stop, on_begin, one_machine=one_machine)


def _comparison_with(
    result: SweepResult, against: Sequence[SweepResult], addresses: tuple[str | None, str]
) -> Comparison | None:
    """The comparison with the server that took turns; None without one."""
    if not against:
        return None
    (other,) = against
    before, after = (redacted(address or "") for address in addresses)
    return compare(other, result, names=(before, after))


def _drafts(result: SweepResult) -> bool:
    """Whether this vLLM drafts, as far as its replies and its page tell."""
    measured = [level.whole for level in result.levels]
    counted = [one.counted for one in measured if one.counted is not None]
    return any(one.draft_tokens for one in counted) or any(
        one.acceptance.draft_tokens for one in measured
    )


def _document(result: SweepResult, summaries: Sequence["LevelSummary"]) -> dict[str, Any]:
    about = ("model", "max_tokens", "rounds", "complete", "fault")
    document = {name: getattr(result, name) for name in about}
    document["levels"] = [asdict(summary) for summary in summaries]
    document["mix"] = [asdict(change) for change in mix_changes(result)]
    return document


def _everything(
    result: SweepResult,
    summaries: Sequence["LevelSummary"],
    comparison: Comparison | None,
    thresholds: Thresholds,
) -> Iterator[str]:
    """The sweep as text, what a mix does, and the comparison."""
    yield from text(result, summaries, thresholds, is_compared=comparison is not None)
    if changes := mix_changes(result):
        yield ""
        yield from mix_text(changes)
    if comparison is not None:
        yield ""
        yield from comparison_text(comparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """One level's metrics, with the verdict on its acceptance.

    ``acceptance_from`` is the source: the ``replies`` themselves or vLLM's ``counters``. The
    verdict is None where the time beside a vLLM without speculation says more.
    """

    level: SweepLevel
    acceptance_from: Literal["replies", "counters", "none"]
    position_rates: tuple[float, ...]
    metrics: Mapping[str, float | None]  # by name
    verdict: Verdict | None
    caveats: tuple[str, ...]


def summarize(
    result: LevelResult, thresholds: Thresholds, *, is_timed: bool = False
) -> LevelSummary:
    """Judges a level by the rule of thumb on the acceptance rate, unless ``is_timed``.

    The sidecar judges live traffic without a baseline in the same way. Of the volume thresholds
    only ``min_requests`` applies, since the sweep itself decides how much is drafted.
    """
    measured = result.whole
    judgement = judge(Evidence(window=measured.acceptance), thresholds)

    return LevelSummary(
        level=result.level,
        acceptance_from=measured.source,
        position_rates=measured.acceptance.position_rates,
        metrics={name: metric.value(measured) for name, metric in METRICS.items()},
        verdict=None if is_timed else judgement.verdict,
        caveats=tuple(_caveats(measured, None if is_timed else judgement)),
    )


def _caveats(measured: Measurement, judgement: Judgement | None) -> Iterator[str]:
    if measured.samples and measured.source == "none":
        others_drafted = measured.counted is not None and measured.counted.draft_tokens
        yield _OTHERS_DRAFTED if others_drafted else _NO_DRAFTS
    if judgement is not None and judgement.gate is not None:
        yield f"no verdict from fewer than {judgement.gate.value:g} requests (raise --requests)"
    if judgement is not None and (undecided := judgement.undecided) is not None:
        spread = f"{undecided.rate:.2f} ± {CONFIDENCE * undecided.error:.2f}"
        yield (
            f"no verdict: an acceptance of {spread} is not certain to be on one side of"
            f" {undecided.line:g} (raise --requests)"
        )
    if measured.others:
        yield _OTHERS


def text(
    result: SweepResult,
    summaries: Sequence[LevelSummary],
    thresholds: Thresholds,
    *,
    is_compared: bool = False,
) -> Iterator[str]:
    """A table of times in milliseconds, and one of acceptance with the verdicts, if there are any.

    After them come the caveats.
    """
    yield f"model {result.model or 'unknown'}; times in milliseconds"
    yield ""
    if summaries:
        yield from _table(summaries, tuple(TIMES))
        yield ""

    if any(one.acceptance_from != "none" for one in summaries):
        is_judged = any(one.verdict is not None for one in summaries)
        verdict = ("verdict",) if is_judged else ()
        yield from _table(summaries, (*ACCEPTANCE, "source", *verdict))
        yield ""
        if is_judged:
            yield _RULE.format(thresholds.acceptance_break_even, thresholds.acceptance_net_negative)
        yield _WHAT_TO_CHANGE

    yield from _notes(result, summaries)
    if not is_compared:
        yield _HOW_TO_TELL


def _table(summaries: Sequence[LevelSummary], columns: Sequence[str]) -> list[str]:
    """The levels with these columns."""
    columns = ("temperature", "concurrency", *columns)

    rows = []
    for one in summaries:
        cells = _cells(one)
        rows.append([cells[column] for column in columns])

    return aligned(_headings(columns), rows)


def _headings(columns: Sequence[str]) -> list[str]:
    """The names of the columns; one that starts like the one before is cut to its last word."""
    headings = [columns[0]]
    for before, name in pairwise(columns):
        repeats = name[:4] == before[:4]
        headings.append(name.split()[-1] if repeats else name)
    return headings


def _cells(one: LevelSummary) -> Mapping[str, str]:
    metrics = {name: METRICS[name].shown(value) for name, value in one.metrics.items()}
    name = one.level.name.removeprefix("temperature ")
    level = {"temperature": name, "concurrency": f"{one.level.concurrency}"}
    return {**level, **metrics, "source": one.acceptance_from, "verdict": one.verdict or "-"}


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
    unanswered = [str(one.level) for one in result.levels if _only_failed(one.whole)]
    if unanswered:
        yield f"no request was answered: {'; '.join(unanswered)}"
    elif not result.complete:
        yield _INCOMPLETE


def _only_failed(measured: Measurement) -> bool:
    return measured.failed > 0 and not measured.samples
