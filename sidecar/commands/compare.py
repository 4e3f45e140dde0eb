"""``compare``: the effect of a change, from two saved sweeps.

The error of a speed comes from the differences between the rounds of a sweep, so it includes anything that slows the
machine down for a while. Fewer than four rounds do not show how much two runs of one server differ, so no speed is
claimed from them. Acceptance does not depend on the machine's speed: its error is that of requests drawn at random.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Final, Literal

from sidecar.commands.arguments import share_of_one
from sidecar.commands.load.metrics import (
    CACHE,
    LEAST_BATCHES,
    METRICS,
    Interval,
    difference,
    estimate,
    least_size,
    relative_change,
)
from sidecar.commands.load.sweep_result import LevelResult, Measurement, SweepLevel, SweepResult, read_saved
from sidecar.settings import Settings
from sidecar.wording.numbers import aligned

HELP = "compare two saved sweeps, before and after a change: differences, their errors and a verdict"
_CONFIDENCE: Final = 0.95  # probability that none of the claimed differences is spurious
_MOST_BATCHES: Final = 20
_SMALLEST: Final = 0.03  # relative; smaller ones are not claimed, since a machine may drift between two sweeps

_TOKENS: Final = "tokens/s"
_MEDIANS: Final = ("TTFT P50", "TPOT P50", _TOKENS)
_SPEEDS: Final = ("TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", _TOKENS)
_ACCEPTED: Final = ("acceptance", "length")
_BALANCE: Final = ("requests/s", *CACHE)  # comparable only if the same requests were sent
_COMPARED: Final = (*_ACCEPTED, *_SPEEDS, *_BALANCE)
_EXACT: Final = ("KV cache tokens",)


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
    if not comparison.changes:
        return 2
    if arguments.fail_if_slower is None:
        return 0
    outcome, lines = _gate(comparison, arguments.fail_if_slower)
    print("\n".join((f"--fail-if-slower: {outcome}", *lines)), file=sys.stderr)
    return _CODES[outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """One metric at one level: seconds, ratios, tokens or requests per second, counts; None if not measured.

    ``change`` is after / before - 1, without an error if there are too few requests, None if the two cannot be
    compared. ``is_shown``: it is larger than its error, and than a drift of the machine could explain.
    """

    level: SweepLevel
    metric: str
    before: Interval | None
    after: Interval | None
    change: Interval | None
    is_shown: bool

    @property
    def slowdown(self) -> Interval | None:
        """The change as a slowdown: 0.05 is 5 % slower. None if the metric is not a speed or not comparable."""
        change = self.change if self.metric in _SPEEDS else None
        return Interval(-change.value, change.error) if change is not None and self.metric == _TOKENS else change


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of the sweep named ``after`` with the one named ``before``; ``notes`` are its caveats.

    ``gains_from`` is the number of output tokens from which on a request gains time, with its range, by level; a level
    is absent where requests gain or lose at any length, and where that is not clear.
    """

    before: str
    after: str
    result: Result
    changes: tuple[MetricChange, ...]  # level by level
    gains_from: Mapping[str, tuple[int, int, int]]
    notes: tuple[str, ...]


def compare(before: SweepResult, after: SweepResult, *, names: tuple[str, str]) -> Comparison:
    """Compares the levels that both have; the confidence holds for all differences together (Bonferroni)."""
    known = {level.level: level for level in after.levels if level.whole.samples}
    pairs = [(level, known[level.level]) for level in before.levels if level.whole.samples and level.level in known]
    confidence = 1 - (1 - _CONFIDENCE) / max(1, len(pairs) * (len(_COMPARED) - len(_EXACT)))
    other_requests = _other_requests(before, after)
    changes: list[MetricChange] = []
    gains = {}
    for pair in pairs:
        sides = {name: [_interval(name, side, confidence) for side in pair] for name in _COMPARED}
        unlike = _BALANCE if other_requests else ()
        if _positions(pair[0]) != _positions(pair[1]):
            unlike = (*unlike, "acceptance")  # it falls as the number of speculative tokens rises; a length does not
        changes += [_change(pair[0].level, name, *sides[name], is_alike=name not in unlike) for name in _COMPARED]
        gain = _gains_from(difference(*sides["TPOT P50"]), difference(*sides["TTFT P50"]))
        if gain is not None and not other_requests:
            gains[str(pair[0].level)] = gain
    return Comparison(
        before=names[0],
        after=names[1],
        result=_result(changes),
        changes=tuple(changes),
        gains_from=gains,
        notes=tuple(_notes(before, after, pairs)),
    )


def _interval(name: str, level: LevelResult, confidence: float) -> Interval | None:
    """The metric's value, with the error that follows from that of its parts."""
    metric, whole = METRICS[name], level.whole
    parts: Sequence[Measurement] = level.rounds
    if name in _ACCEPTED:  # they do not depend on the machine's speed
        size = ceil(len(whole.samples) / _MOST_BATCHES)
        starts = range(0, len(whole.samples) - size + 1, size)
        parts = [replace(whole, samples=whole.samples[start : start + size], counted=None) for start in starts]
    elif min(len(part.samples) for part in parts) < least_size(metric.share):
        parts = ()
    return estimate(metric.value(whole), map(metric.value, parts), confidence)


def _change(
    level: SweepLevel, name: str, before: Interval | None, after: Interval | None, *, is_alike: bool
) -> MetricChange:
    change = relative_change(before, after) if is_alike else None
    is_clear = change is not None and change.error is not None and abs(change.value) > max(change.error, _SMALLEST)
    return MetricChange(level=level, metric=name, before=before, after=after, change=change, is_shown=is_clear)


def _positions(level: LevelResult) -> int:
    """The number of speculative tokens; 0 if nothing was drafted."""
    return len(level.whole.acceptance.position_rates)


def _gains_from(token: Interval | None, first: Interval | None) -> tuple[int, int, int] | None:
    """From the differences in seconds: n tokens take the time to the first, and n - 1 times that per token."""
    if token is None or first is None or token.error is None or first.error is None:
        return None
    if -token.value <= token.error or first.value <= first.error:
        return None
    one, low, high = (
        1 + ceil((first.value + sign * first.error) / (-token.value - sign * token.error)) for sign in (0, -1, 1)
    )
    return one, low, high


def _other_requests(before: SweepResult, after: SweepResult) -> list[str]:
    """In what the requests of the two differ; empty if they sent the same ones."""
    same = {
        "other --max-tokens": before.max_tokens == after.max_tokens,
        "other --rounds": before.rounds == after.rounds,
        "other prompts, --requests or --endpoint": before.requests == after.requests,
        "a sweep ended early": before.complete and after.complete,
    }
    return [reason for reason, is_same in same.items() if not is_same]


def _result(changes: Sequence[MetricChange]) -> Result:
    """The result from the speeds that are shown to differ; without any, nothing is claimed."""
    known = [change for change in changes if change.slowdown is not None and change.slowdown.error is not None]
    slower = [change.slowdown.value > 0 for change in known if change.is_shown and change.slowdown is not None]
    if not slower:
        return Result.NO_DIFFERENCE if known else Result.INSUFFICIENT_DATA
    return Result.SLOWER if all(slower) else Result.MIXED if any(slower) else Result.FASTER


def _notes(before: SweepResult, after: SweepResult, pairs: Sequence[tuple[LevelResult, LevelResult]]) -> Iterator[str]:
    if before.model != after.model:
        yield f"the model names differ: {before.model} and {after.model}"
    if reasons := _other_requests(before, after):
        yield f"not the same requests ({', '.join(reasons)}), so these are not compared: {', '.join(_BALANCE)}"
    missing = len(before.levels) + len(after.levels) - 2 * len(pairs)
    if missing:
        yield f"left out, since only one sweep measured them: {missing} level{'' if missing == 1 else 's'}"
    tokens = [{_positions(side) for side in pair} for pair in pairs]
    if any(0 not in numbers and len(numbers) > 1 for numbers in tokens):
        yield "the numbers of speculative tokens differ, which changes the acceptance rate: compare length and TPOT"
    if any(side.whole.others for pair in pairs for side in pair):
        yield "vLLM served other clients during a sweep, which affects its times"
    if min(before.rounds, after.rounds) < LEAST_BATCHES:
        yield f"fewer than {LEAST_BATCHES} rounds are not enough to compare speed: run both with `sweep --rounds 8`"


def _text(comparison: Comparison) -> Iterator[str]:
    """A table of both sides with the changes, and the verdict; times in milliseconds."""
    yield f"{comparison.after} (after) against {comparison.before} (before); times in milliseconds"
    yield ""
    if not comparison.changes:
        yield "the two sweeps have no level in common"
    else:
        rows: list[Sequence[str]] = []
        for level, changes in groupby(comparison.changes, lambda change: str(change.level)):
            rows += [(level, "", "", "", ""), *map(_row, changes)]
        yield from aligned(("", "before", "after", "change", "error"), rows)
        yield ""
        yield f"verdict: {_VERDICTS[comparison.result].format(before=comparison.before, after=comparison.after)}"
        yield from (line for change in comparison.changes if change.is_shown for line in _claim(change))
        for level, (one, low, high) in comparison.gains_from.items():
            yield f"  a request gains time from {one} output tokens on ({low} to {high}) at {level}"
    yield from (f"note: {note}" for note in comparison.notes)


def _row(one: MetricChange) -> Sequence[str]:
    sides = (METRICS[one.metric].shown(side.value if side is not None else None) for side in (one.before, one.after))
    change = "-" if one.change is None else f"{one.change.value:+.1%}"
    error = "-" if one.change is None or one.change.error is None else f"±{one.change.error:.1%}"
    return (f"  {one.metric}", *sides, change, error)


def _claim(one: MetricChange) -> Iterator[str]:
    if one.change is not None and one.change.error is not None:
        size, word = abs(one.change.value), "higher" if one.change.value > 0 else "lower"
        bounds = dict.fromkeys(f"{bound:.0%}" for bound in (size - one.change.error, size + one.change.error))
        yield f"  {one.metric}: {' to '.join(bounds)} {word} at {one.level}"


def _gate(comparison: Comparison, limit: float) -> tuple[Literal["passed", "failed", "undecided"], list[str]]:
    """Failed if a level is significantly slower by ``limit`` or more; undecided if that cannot be ruled out.

    Checks medians and throughput, whose errors need the fewest requests.
    """
    failed, undecided = [], []
    for change in comparison.changes:
        slowdown, where = change.slowdown, f"{change.metric} at {change.level}"
        if slowdown is None or change.metric not in _MEDIANS:
            continue
        if change.is_shown and slowdown.value >= limit:
            failed.append(f"{where} is slower by {slowdown.value:.1%}; the limit is {limit:.1%}")
        elif slowdown.high is None or slowdown.high >= limit:
            bound = "unknown" if slowdown.high is None else f"up to {slowdown.high:.1%}"
            undecided.append(f"{where}: a slowdown of {limit:.1%} cannot be ruled out ({bound})")
    if failed:
        return "failed", failed
    return ("undecided", undecided) if undecided else ("passed", [])
