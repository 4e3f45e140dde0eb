"""Two saved sweeps level by level: differences, their errors, and which of them are shown.

The error of a speed comes from the differences between the rounds of a sweep, so it includes whatever slows the machine
for a while. A sweep of fewer than four rounds does not show how much two runs of one server differ, and no speed is
claimed from it. Acceptance does not depend on the machine's speed: its error is that of requests drawn at random.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.commands.estimates import (
    LEAST_BATCHES,
    Interval,
    by_rounds,
    quantile_interval,
    ratio_interval,
    relative_change,
)
from sidecar.commands.sweep.results import LevelResult, SweepResult
from sidecar.commands.sweep.summary import tpots
from sidecar.commands.sweep.workload import Level, Load

CONFIDENCE: Final = 0.95  # probability that none of the claimed differences is spurious
SMALLEST: Final = 0.03  # relative; smaller ones are not claimed, since a machine may drift from one sweep to the next
_LEAST_EXACT: Final = 8  # requests whose acceptance is known

ACCEPTANCE: Final = "acceptance"
LENGTH: Final = "length"
TOKENS: Final = "tokens/s"
MEDIANS: Final = ("TTFT P50", "TPOT P50", TOKENS)
METRICS: Final = (ACCEPTANCE, LENGTH, "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", TOKENS)
"""The compared columns of the table of speeds; all but the first two show which side is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One metric of one level: seconds, ratios or tokens per second, None if not measured.

    ``change`` is after / before - 1 with its bounds, or without bounds if there are too few requests for them.
    """

    level: Level
    metric: str
    before: float | None
    after: float | None
    change: Interval | None

    @property
    def is_shown(self) -> bool:
        """Whether the two differ by more than their error and more than a drift of the machine may explain."""
        change = self.change
        if change is None or change.low is None or change.high is None:
            return False
        return (change.low > 0 or change.high < 0) and abs(change.value) > SMALLEST

    @property
    def is_speed(self) -> bool:
        """Whether it shows which side is faster."""
        return self.metric not in (ACCEPTANCE, LENGTH)

    @property
    def slowdown(self) -> Interval | None:
        """The change in the direction of slower: 0.05 is 5 % slower."""
        change = self.change
        if change is None or self.metric != TOKENS:
            return change
        if change.low is None or change.high is None:
            return Interval(-change.value)
        return Interval(-change.value, -change.high, -change.low)


@dataclass(frozen=True, slots=True)
class ComparedLevel:
    """A level that both sweeps measured."""

    before: LevelResult
    after: LevelResult
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``after`` against ``before``, both named; ``notes`` are its caveats."""

    before: str
    after: str
    levels: tuple[ComparedLevel, ...]
    notes: tuple[str, ...]

    @property
    def differences(self) -> list[Difference]:
        """Those of all levels."""
        return [one for level in self.levels for one in level.differences]


_Pairs = Sequence[tuple[LevelResult, LevelResult]]


def compare(before: SweepResult, after: SweepResult, *, names: tuple[str, str], comparisons: int = 1) -> Comparison:
    """Compares the levels that both have; ``comparisons`` is their total number, for the error of all together."""
    pairs = _pairs(before, after)
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(METRICS) * len(pairs) * comparisons)
    rounds = (before.rounds, after.rounds)
    return Comparison(
        before=names[0],
        after=names[1],
        levels=tuple(
            ComparedLevel(one, other, tuple(_differences(one, other, rounds, confidence))) for one, other in pairs
        ),
        notes=tuple(_notes(before, after, pairs)),
    )


def _pairs(before: SweepResult, after: SweepResult) -> _Pairs:
    known = {_key(one.level): one for one in after.levels if one.samples}
    return [(one, known[_key(one.level)]) for one in before.levels if one.samples and _key(one.level) in known]


def _key(level: Level) -> Level:
    """A share of the capacity is the same load on both, though the rates differ."""
    share = level.load.share
    return level if share is None else Level(level.workload, Load(share=round(share, 4)))


def _differences(
    before: LevelResult, after: LevelResult, rounds: tuple[int, int], confidence: float
) -> Iterator[Difference]:
    same_k = len(before.speculation.position_rates) == len(after.speculation.position_rates)
    for metric in METRICS:
        then = _measured(metric, before, rounds[0], confidence)
        now = _measured(metric, after, rounds[1], confidence)
        # Acceptance falls as the number of speculative tokens rises; a length is comparable at any number. In an
        # open loop, tokens per second are what was sent.
        closed = before.level.load.at_once is not None
        comparable = (metric != ACCEPTANCE or same_k) and (metric != TOKENS or closed)
        yield Difference(
            level=before.level,
            metric=metric,
            before=None if then is None else then.value,
            after=None if now is None else now.value,
            change=relative_change(then, now) if comparable else None,
        )


def _measured(metric: str, level: LevelResult, rounds: int, confidence: float) -> Interval | None:
    samples = level.samples
    cut = by_rounds(len(samples), rounds)
    if metric in (ACCEPTANCE, LENGTH):
        return _accepted(metric, level, confidence)
    if metric == TOKENS:
        return _tokens_per_second(level, cut, confidence)
    values = tpots(samples) if metric.startswith("TPOT") else [one.ttft for one in samples if one.ttft is not None]
    return quantile_interval(values, 0.99 if metric.endswith("P99") else 0.5, cut, confidence)


def _accepted(metric: str, level: LevelResult, confidence: float) -> Interval | None:
    exact = [one for one in level.samples if one.drafts is not None]
    if not exact:  # from vLLM's counters: one number without an error
        found = level.speculation.acceptance if metric == ACCEPTANCE else level.speculation.length
        return None if found is None else Interval(found)
    alone = len(exact) if len(exact) >= _LEAST_EXACT else None  # the machine's speed is not in them
    accepted = [float(one.accepted_tokens) for one in exact]
    if metric == ACCEPTANCE:
        return ratio_interval(accepted, [float(one.draft_tokens) for one in exact], alone, confidence)
    drafts = [float(one.drafts or 0) for one in exact]
    return ratio_interval([a + d for a, d in zip(accepted, drafts, strict=True)], drafts, alone, confidence)


def _tokens_per_second(level: LevelResult, cut: int | None, confidence: float) -> Interval | None:
    """The relative error is that of a request's tokens per second, as the number in flight is constant."""
    samples = level.samples
    tokens, durations = [float(one.tokens or 0) for one in samples], [one.duration for one in samples]
    found, value = ratio_interval(tokens, durations, cut, confidence), level.speed.tokens_per_second
    if found is None or found.low is None or found.high is None or not found.value:
        return Interval(value)
    return Interval(value, value * found.low / found.value, value * found.high / found.value)


def _notes(before: SweepResult, after: SweepResult, pairs: _Pairs) -> Iterator[str]:
    if before.model != after.model:
        yield f"the models' names differ: {before.model} and {after.model}"
    if before.max_tokens != after.max_tokens:
        yield f"--max-tokens differs: {before.max_tokens} and {after.max_tokens}; times and lengths depend on it"
    missing = len(before.levels) + len(after.levels) - 2 * len(pairs)
    if missing:
        yield f"levels measured on one side only are left out: {missing}"
    numbers = {tuple(len(one.speculation.position_rates) for one in pair) for pair in pairs}
    if any(0 not in one and len(set(one)) > 1 for one in numbers):
        yield "the numbers of speculative tokens differ, which alone changes acceptance: compare length and TPOT"
    if any(one.other_requests for pair in pairs for one in pair):
        yield "a vLLM served other clients during a sweep: its times are not the sweep's alone"
    if min(before.rounds, after.rounds) < LEAST_BATCHES:
        yield f"no speed is claimed from fewer than {LEAST_BATCHES} rounds: use `sweep --rounds 8` on both sides"
    if not (before.complete and after.complete):
        yield "a sweep was stopped before its end"
