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
from sidecar.commands.sweep.options import Level, Load
from sidecar.commands.sweep.results import LevelSummary, SweepResult
from sidecar.commands.sweep.summary import tpots

CONFIDENCE: Final = 0.95  # probability that none of the claimed differences is spurious
SMALLEST: Final = 0.03  # relative; smaller ones are not claimed, since a machine may drift from one sweep to the next
_PER_LEVEL: Final = 7  # metrics
_LEAST_EXACT: Final = 8  # requests whose acceptance is known


@dataclass(frozen=True, slots=True)
class Metric:
    """A measured quantity; ``is_speed``: it shows which side is faster, the lower one unless ``higher_is_better``."""

    name: str
    is_time: bool = False
    is_speed: bool = True
    higher_is_better: bool = False


ACCEPTANCE: Final = Metric("acceptance", is_speed=False)
LENGTH: Final = Metric("length", is_speed=False)
TTFT_P50: Final = Metric("TTFT P50", is_time=True)
TTFT_P99: Final = Metric("TTFT P99", is_time=True)
TPOT_P50: Final = Metric("TPOT P50", is_time=True)
TPOT_P99: Final = Metric("TPOT P99", is_time=True)
TOKENS: Final = Metric("tokens/s", higher_is_better=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One metric of one level: seconds, ratios or tokens per second, None if not measured.

    ``change`` is after / before - 1 with its bounds, or without bounds if there are too few requests for them.
    """

    level: Level
    metric: Metric
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
    def slowdown(self) -> Interval | None:
        """The change in the direction of slower: 0.05 is 5 % slower."""
        change = self.change
        if change is None or not self.metric.higher_is_better:
            return change
        if change.low is None or change.high is None:
            return Interval(-change.value)
        return Interval(-change.value, -change.high, -change.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``after`` against ``before``, both named; ``notes`` are its caveats."""

    before: str
    after: str
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


def compare(before: SweepResult, after: SweepResult, *, names: tuple[str, str], comparisons: int = 1) -> Comparison:
    """Compares the levels that both have; ``comparisons`` is their total number, for the error of all together."""
    pairs = _pairs(before, after)
    confidence = 1 - (1 - CONFIDENCE) / max(1, _PER_LEVEL * len(pairs) * comparisons)
    return Comparison(
        before=names[0],
        after=names[1],
        differences=tuple(
            found
            for pair in pairs
            for found in _differences((pair[0], before.rounds), (pair[1], after.rounds), confidence)
        ),
        notes=tuple(_notes(before, after, pairs)),
    )


_Level = tuple[LevelSummary, int]
_Pairs = Sequence[tuple[LevelSummary, LevelSummary]]


def _pairs(before: SweepResult, after: SweepResult) -> _Pairs:
    known = {_key(level): level for level in after.levels if level.samples}
    return [(level, known[_key(level)]) for level in before.levels if level.samples and _key(level) in known]


def _key(level: LevelSummary) -> Level:
    """A share of the capacity is the same load on both, though the rates differ."""
    return level.level if level.share is None else Level(level.level.workload, Load(share=round(level.share, 4)))


def _differences(one: _Level, other: _Level, confidence: float) -> Iterator[Difference]:
    before, after = one[0], other[0]
    same_k = len(before.position_rates) == len(after.position_rates)
    for metric in (ACCEPTANCE, LENGTH, TTFT_P50, TTFT_P99, TPOT_P50, TPOT_P99, TOKENS):
        then, now = _measured(metric, *one, confidence), _measured(metric, *other, confidence)
        # Acceptance falls as the number of speculative tokens rises; a length is comparable at any number. In an
        # open loop, tokens per second are what was sent.
        comparable = (metric is not ACCEPTANCE or same_k) and (metric is not TOKENS or before.at_once is not None)
        yield Difference(
            level=before.level,
            metric=metric,
            before=None if then is None else then.value,
            after=None if now is None else now.value,
            change=relative_change(then, now) if comparable else None,
        )


def _measured(metric: Metric, level: LevelSummary, rounds: int, confidence: float) -> Interval | None:
    samples = level.samples
    cut = by_rounds(len(samples), rounds)
    if metric in (ACCEPTANCE, LENGTH):
        exact = [one for one in samples if one.drafts is not None]
        alone = len(exact) if len(exact) >= _LEAST_EXACT else None  # the machine's speed is not in them
        accepted = [float(one.accepted_tokens) for one in exact]
        if not exact:  # from vLLM's counters: one number without an error
            found = level.acceptance if metric is ACCEPTANCE else level.acceptance_length
            return None if found is None else Interval(found)
        if metric is ACCEPTANCE:
            return ratio_interval(accepted, [float(one.draft_tokens) for one in exact], alone, confidence)
        drafts = [float(one.drafts or 0) for one in exact]
        return ratio_interval([a + d for a, d in zip(accepted, drafts, strict=True)], drafts, alone, confidence)
    if metric is TOKENS:
        return _tokens_per_second(level, cut, confidence)
    values = tpots(samples) if metric.name.startswith("TPOT") else [one.ttft for one in samples if one.ttft is not None]
    return quantile_interval(values, 0.99 if metric.name.endswith("P99") else 0.5, cut, confidence)


def _tokens_per_second(level: LevelSummary, cut: int | None, confidence: float) -> Interval | None:
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
    numbers = {(len(one.position_rates), len(other.position_rates)) for one, other in pairs}
    if any(one and other and one != other for one, other in numbers):
        yield "the numbers of speculative tokens differ, which alone changes acceptance: compare length and TPOT"
    if any(one.other_requests or other.other_requests for one, other in pairs):
        yield "a vLLM served other clients during a sweep: its times are not the sweep's alone"
    if min(before.rounds, after.rounds) < LEAST_BATCHES:
        yield f"no speed is claimed from fewer than {LEAST_BATCHES} rounds: use `sweep --rounds 8` on both sides"
    if not (before.complete and after.complete):
        yield "a sweep was stopped before its end"
