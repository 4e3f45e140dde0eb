"""``compare``: the effect of a change, from two saved sweeps.

The error of a speed comes from the differences between the rounds of a sweep, so it includes anything that slows the
machine down for a while. Fewer than four rounds do not show how much two runs of one server differ, so no speed is
claimed from them. Acceptance does not depend on the machine's speed: its error is that of requests drawn at random.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import ceil
from pathlib import Path
from typing import Final, Literal

from sidecar.commands.arguments import share_of_one
from sidecar.commands.load.balance import Balance, balance, sentence
from sidecar.commands.load.metrics import (
    LEAST_BATCHES,
    METRICS,
    Cells,
    Interval,
    SweepMetric,
    Values,
    cells,
    least_size,
    of_level,
    relative_change,
    table,
    values,
)
from sidecar.commands.load.sweep_result import LevelMeasurement, SweepLevel, SweepResult, read_saved
from sidecar.settings import Settings

HELP = "compare two saved sweeps, before and after a change: differences, their errors and a verdict"
_CONFIDENCE: Final = 0.95  # probability that none of the claimed differences is spurious
_MOST_BATCHES: Final = 20
_SMALLEST: Final = 0.03  # relative; smaller ones are not claimed, since a machine may drift between two sweeps

_TOKENS: Final = "tokens/s"
_MEDIANS: Final = ("TTFT P50", "TPOT P50", _TOKENS)
_ACCEPTED: Final = ("acceptance", "length")
# The metrics that are compared; all but the first two show which side is faster.
_COMPARED: Final = (*_ACCEPTED, "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", _TOKENS)
_DIFFERENCES: Final = (*_COMPARED, "requests/s")  # this one is only in the balance


class Result(StrEnum):
    """Which side is faster."""

    FASTER = "faster"
    SLOWER = "slower"
    MIXED = "mixed"
    NO_DIFFERENCE = "no_difference_shown"
    INSUFFICIENT_DATA = "insufficient_data"


_VERDICTS: Final = {
    Result.FASTER: "{after} is faster than {before}",
    Result.SLOWER: "{after} is slower than {before}",
    Result.MIXED: "{after} is faster than {before} in some respects and slower in others",
    Result.NO_DIFFERENCE: "no significant difference in speed between {before} and {after}",
    Result.INSUFFICIENT_DATA: "not enough data: sweep with more --rounds and --requests",
}


_CODES: Final = {"passed": 0, "failed": 1, "undecided": 3}  # exit codes of --fail-if-slower


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``compare``."""
    parser.add_argument("before", type=Path, metavar="A.json", help="a file written by `sweep --save`")
    parser.add_argument("after", type=Path, metavar="B.json", help="another one, to compare with A")
    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")
    slower = (
        "such as 5%%: exit with 1 if median TTFT, median TPOT or tokens/s is significantly slower by that much, "
        "with 3 if the sweeps are not precise enough to rule it out"
    )
    parser.add_argument("--fail-if-slower", type=share_of_one, metavar="SHARE", help=slower)


def run(arguments: argparse.Namespace, _settings: Settings) -> int:
    """Returns 0, 1 or 3 by ``--fail-if-slower``; 2 if no level can be compared.

    Raises:
        InputError: a file cannot be used.
    """
    names = (str(arguments.before), str(arguments.after))
    comparison = compare(read_saved(arguments.before), read_saved(arguments.after), names=names)
    if arguments.json:
        print(json.dumps(asdict(comparison), indent=2, allow_nan=False))
    else:
        print("\n".join(_text(comparison)))
    if not comparison.levels:
        return 2
    if arguments.fail_if_slower is None:
        return 0
    outcome, lines = _gate(comparison, arguments.fail_if_slower)
    print("\n".join((f"--fail-if-slower: {outcome}", *lines)), file=sys.stderr)
    return _CODES[outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLevel:
    """A level that both sweeps measured: seconds, ratios or tokens per second, None if not measured.

    ``changes`` are after / before - 1 by metric, without an error if there are too few requests, None if the two
    cannot be compared. ``shown`` are the metrics that differ by more than their error and by more than a drift of the
    machine could explain. ``balance`` is None unless both sweeps ran to the end and sent the same requests.
    """

    level: SweepLevel
    before: Values
    after: Values
    changes: Mapping[str, Interval | None]
    shown: tuple[str, ...]
    balance: Balance | None

    def slowdown(self, metric: str) -> Interval | None:
        """The change as a slowdown: 0.05 is 5 % slower. None if the metric is not a speed or not comparable."""
        change = None if metric in _ACCEPTED else self.changes[metric]
        return Interval(-change.value, change.error) if change is not None and metric == _TOKENS else change


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of the sweep named ``after`` with the one named ``before``; ``notes`` are its caveats."""

    before: str
    after: str
    result: Result
    levels: tuple[ComparedLevel, ...]
    notes: tuple[str, ...]


def compare(before: SweepResult, after: SweepResult, *, names: tuple[str, str]) -> Comparison:
    """Compares the levels that both have; the confidence holds for all differences together (Bonferroni)."""
    known = {measured.level: measured for measured in after.levels if measured.samples}
    pairs = [
        (measured, known[measured.level]) for measured in before.levels if measured.samples and measured.level in known
    ]
    confidence = 1 - (1 - _CONFIDENCE) / max(1, len(pairs) * len(_DIFFERENCES))
    rounds = (before.rounds, after.rounds)
    weighs = _sent_the_same(before, after)
    levels = [_compared(pair, rounds, confidence, weighs=weighs) for pair in pairs]
    return Comparison(
        before=names[0],
        after=names[1],
        result=_result(levels),
        levels=tuple(levels),
        notes=tuple(_notes(before, after, pairs)),
    )


def _compared(
    pair: tuple[LevelMeasurement, LevelMeasurement], rounds: tuple[int, int], confidence: float, *, weighs: bool
) -> ComparedLevel:
    both = [*zip(pair, rounds, strict=True)]
    sides = {name: [_interval(METRICS[name], *side, confidence) for side in both] for name in _DIFFERENCES}
    changes = {name: relative_change(*sides[name]) for name in _COMPARED}
    if _positions(pair[0]) != _positions(pair[1]):
        changes["acceptance"] = None  # it falls as the number of speculative tokens rises; a length is comparable
    return ComparedLevel(
        level=pair[0].level,
        before=values(pair[0]),
        after=values(pair[1]),
        changes=changes,
        shown=tuple(name for name, change in changes.items() if _is_shown(change)),
        balance=balance(sides, *pair, confidence) if weighs else None,
    )


def _sent_the_same(before: SweepResult, after: SweepResult) -> bool:
    sent, sent_after = ((one.requests, one.max_tokens, one.rounds) for one in (before, after))
    return sent == sent_after and before.complete and after.complete


def _is_shown(change: Interval | None) -> bool:
    return change is not None and change.error is not None and abs(change.value) > max(change.error, _SMALLEST)


def _interval(metric: SweepMetric, measurement: LevelMeasurement, rounds: int, confidence: float) -> Interval | None:
    requests = len(measurement.samples)
    if metric.name in _ACCEPTED:
        cut = requests // ceil(requests / _MOST_BATCHES)  # they do not depend on the machine's speed
    else:
        cut = rounds if requests // rounds >= least_size(metric.share) else 0
    return metric.interval(measurement, cut, confidence)


def _positions(measurement: LevelMeasurement) -> int:
    """The number of speculative tokens; 0 if nothing was drafted."""
    return len(measurement.acceptance.position_rates)


def _result(levels: Sequence[ComparedLevel]) -> Result:
    """The result from the speeds that are shown to differ; without any, nothing is claimed."""
    speeds = [(name in level.shown, level.slowdown(name)) for level in levels for name in _COMPARED]
    known = [(is_shown, slowdown.value) for is_shown, slowdown in speeds if slowdown and slowdown.error is not None]
    slower = [slowdown > 0 for is_shown, slowdown in known if is_shown]
    if not slower:
        return Result.NO_DIFFERENCE if known else Result.INSUFFICIENT_DATA
    return Result.SLOWER if all(slower) else Result.MIXED if any(slower) else Result.FASTER


def _notes(
    before: SweepResult, after: SweepResult, pairs: Sequence[tuple[LevelMeasurement, LevelMeasurement]]
) -> Iterator[str]:
    if before.model != after.model:
        yield f"the model names differ: {before.model} and {after.model}"
    if before.max_tokens != after.max_tokens:
        yield f"--max-tokens differs: {before.max_tokens} and {after.max_tokens}; times and lengths depend on it"
    if not _sent_the_same(before, after):
        yield "no balance: the prompts, --requests, --rounds or --max-tokens differ, or a sweep is incomplete"
    missing = len(before.levels) + len(after.levels) - 2 * len(pairs)
    if missing:
        yield f"left out, since only one sweep measured them: {missing} level{'' if missing == 1 else 's'}"
    tokens = [{_positions(side) for side in pair} for pair in pairs]
    if any(0 not in numbers and len(numbers) > 1 for numbers in tokens):
        yield "the numbers of speculative tokens differ, which changes the acceptance rate: compare length and TPOT"
    if any(side.others for pair in pairs for side in pair):
        yield "vLLM served other clients during a sweep, which affects its times"
    if min(before.rounds, after.rounds) < LEAST_BATCHES:
        yield f"fewer than {LEAST_BATCHES} rounds are not enough to compare speed: run both with `sweep --rounds 8`"
    if not (before.complete and after.complete):
        yield "a sweep was stopped before its end"


def _text(comparison: Comparison) -> Iterator[str]:
    """A table of both sides with the changes, and the verdict; times in milliseconds."""
    yield f"{comparison.after} (after) against {comparison.before} (before); times in milliseconds"
    yield ""
    if not comparison.levels:
        yield "the two sweeps have no level in common"
    else:
        rows = [row for level in comparison.levels for row in _rows(level)]
        yield from table(rows, ("sweep", *_COMPARED))
        yield ""
        yield from _verdict(comparison)
        yield from (f"  {one.level}: {sentence(one.balance)}" for one in comparison.levels if one.balance is not None)
    yield from (f"note: {note}" for note in comparison.notes)


def _rows(level: ComparedLevel) -> list[Cells]:
    changes, errors = {"sweep": "change"}, {"sweep": "error"}
    for metric, change in level.changes.items():
        changes[metric] = "-" if change is None else f"{change.value:+.1%}"
        errors[metric] = "-" if change is None or change.error is None else f"±{change.error:.1%}"
    before = {**of_level(level.level), **cells(level.before), "sweep": "before"}
    return [before, {**cells(level.after), "sweep": "after"}, changes, errors]


def _verdict(comparison: Comparison) -> Iterator[str]:
    """The verdict in words, and a line for each metric with a shown difference."""
    yield f"verdict: {_VERDICTS[comparison.result].format(before=comparison.before, after=comparison.after)}"
    for level in comparison.levels:
        for metric in level.shown:
            change = level.changes[metric]
            if change is not None and change.error is not None:
                size, word = abs(change.value), "higher" if change.value > 0 else "lower"
                least, most = size - change.error, size + change.error
                yield f"  {metric} is {least:.0%} to {most:.0%} {word} at {level.level}"


def _gate(comparison: Comparison, limit: float) -> tuple[Literal["passed", "failed", "undecided"], list[str]]:
    """Failed if a level is significantly slower by ``limit`` or more; undecided if that cannot be ruled out.

    Checks medians and throughput, whose errors need the fewest requests.
    """
    failed, undecided = [], []
    for level, metric in ((level, metric) for level in comparison.levels for metric in _MEDIANS):
        slowdown, where = level.slowdown(metric), f"{metric} at {level.level}"
        if slowdown is None:
            continue
        if metric in level.shown and slowdown.value >= limit:
            failed.append(f"{where} is slower by {slowdown.value:.1%}; the limit is {limit:.1%}")
        elif slowdown.high is None or slowdown.high >= limit:
            bound = "unknown" if slowdown.high is None else f"up to {slowdown.high:.1%}"
            undecided.append(f"{where}: a slowdown of {limit:.1%} cannot be ruled out ({bound})")
    if failed:
        return "failed", failed
    return ("undecided", undecided) if undecided else ("passed", [])
