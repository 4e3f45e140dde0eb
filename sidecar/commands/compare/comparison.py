"""Compares two saved sweeps level by level: the differences, their errors, and which of them are shown.

The error of a speed comes from the differences between the rounds of a sweep, so it includes anything that slows the
machine down for a while. Fewer than four rounds do not show how much two runs of one server differ, so no speed is
claimed from them. Acceptance does not depend on the machine's speed: its error is that of requests drawn at random.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.commands.estimates import LEAST_BATCHES, Interval, batches, least_size, relative_change
from sidecar.commands.sweep.measured import Measured, SweepResult
from sidecar.commands.sweep.metrics import METRICS, Metric, Values, values
from sidecar.commands.sweep.workload import Level

CONFIDENCE: Final = 0.95  # probability that none of the claimed differences is spurious
SMALLEST: Final = 0.03  # relative; smaller ones are not claimed, since a machine may drift between two sweeps

TOKENS: Final = "tokens/s"
MEDIANS: Final = ("TTFT P50", "TPOT P50", TOKENS)
ACCEPTED: Final = ("acceptance", "length")
COMPARED: Final = (*ACCEPTED, "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", TOKENS)
"""The metrics that are compared; all but the first two show which side is faster."""


class Result(StrEnum):
    """Which side is faster."""

    FASTER = "faster"
    SLOWER = "slower"
    MIXED = "mixed"
    NO_DIFFERENCE = "no_difference_shown"
    INSUFFICIENT_DATA = "insufficient_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLevel:
    """A level that both sweeps measured: seconds, ratios or tokens per second, None if not measured.

    ``changes`` are after / before - 1 by metric, without an error if there are too few requests, None if the two
    cannot be compared. ``shown`` are the metrics that differ by more than their error and by more than a drift of the
    machine could explain.
    """

    level: Level
    before: Values
    after: Values
    changes: Mapping[str, Interval | None]
    shown: tuple[str, ...]

    def slowdown(self, metric: str) -> Interval | None:
        """The change as a slowdown: 0.05 is 5 % slower. None if the metric is not a speed or not comparable."""
        change = None if metric in ACCEPTED else self.changes[metric]
        return Interval(-change.value, change.error) if change is not None and metric == TOKENS else change


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
    known = {one.level: one.speculating for one in after.levels if one.speculating.samples}
    pairs = {
        one.level: (one.speculating, known[one.level])
        for one in before.levels
        if one.speculating.samples and one.level in known
    }
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(COMPARED) * len(pairs))
    rounds = (before.rounds, after.rounds)
    levels = tuple(_compared(level, pair, rounds, confidence) for level, pair in pairs.items())
    return Comparison(
        before=names[0],
        after=names[1],
        result=_result(levels),
        levels=levels,
        notes=tuple(_notes(before, after, list(pairs.values()))),
    )


def _compared(
    level: Level, pair: tuple[Measured, Measured], rounds: tuple[int, int], confidence: float
) -> ComparedLevel:
    changes: dict[str, Interval | None] = {}
    for name in COMPARED:
        then, now = (_interval(METRICS[name], *one, confidence) for one in zip(pair, rounds, strict=True))
        # Acceptance falls as the number of speculative tokens rises; a length is comparable at any number. In an
        # open loop, the arrival rate decides the tokens per second.
        same_k = _positions(pair[0]) == _positions(pair[1])
        comparable = (name != "acceptance" or same_k) and (name != TOKENS or level.load.at_once is not None)
        changes[name] = relative_change(then, now) if comparable else None
    return ComparedLevel(
        level=level,
        before=values(pair[0]),
        after=values(pair[1]),
        changes=changes,
        shown=tuple(name for name, change in changes.items() if _is_shown(change)),
    )


def _is_shown(change: Interval | None) -> bool:
    return change is not None and change.error is not None and abs(change.value) > max(change.error, SMALLEST)


def _result(levels: Sequence[ComparedLevel]) -> Result:
    """The result from the speeds that are shown to differ; without any, nothing is claimed."""
    speeds = [(name in level.shown, level.slowdown(name)) for level in levels for name in COMPARED]
    known = [(is_shown, one) for is_shown, one in speeds if one is not None and one.error is not None]
    slower = [one.value > 0 for is_shown, one in known if is_shown]
    if not slower:
        return Result.NO_DIFFERENCE if known else Result.INSUFFICIENT_DATA
    return Result.SLOWER if all(slower) else Result.MIXED if any(slower) else Result.FASTER


def _interval(metric: Metric, measured: Measured, rounds: int, confidence: float) -> Interval | None:
    requests = len(measured.samples)
    if metric.name in ACCEPTED:
        cut = batches(requests, 1)  # they do not depend on the machine's speed
    else:
        cut = rounds if requests // rounds >= least_size(metric.share) else None
    return metric.interval(measured, cut, confidence)


def _positions(measured: Measured) -> int:
    """The number of speculative tokens; 0 if nothing was drafted."""
    return len(measured.acceptance.position_rates)


def _notes(before: SweepResult, after: SweepResult, pairs: Sequence[tuple[Measured, Measured]]) -> Iterator[str]:
    if before.model != after.model:
        yield f"the model names differ: {before.model} and {after.model}"
    if before.max_tokens != after.max_tokens:
        yield f"--max-tokens differs: {before.max_tokens} and {after.max_tokens}; times and lengths depend on it"
    missing = len(before.levels) + len(after.levels) - 2 * len(pairs)
    if missing:
        yield f"left out, since only one sweep measured them: {missing} level{'' if missing == 1 else 's'}"
    numbers = [tuple(map(_positions, pair)) for pair in pairs]
    if any(0 not in one and len(set(one)) > 1 for one in numbers):
        yield "the numbers of speculative tokens differ, which changes the acceptance rate: compare length and TPOT"
    if any(one.others for pair in pairs for one in pair):
        yield "vLLM served other clients during a sweep, which affects its times"
    if min(before.rounds, after.rounds) < LEAST_BATCHES:
        yield f"fewer than {LEAST_BATCHES} rounds are not enough to compare speed: run both with `sweep --rounds 8`"
    if not (before.complete and after.complete):
        yield "a sweep was stopped before its end"
