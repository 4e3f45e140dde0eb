"""The effect of a change, from two sweeps.

The error of a speed comes from the differences between the rounds of a sweep, so it includes
anything that slows the machine down for a while. Where the two servers took turns, it comes from
the differences between rounds of the two, which are the same if both are slowed down. Two machines
are not slowed down together and differ anyway, so a change counts only beyond that. Fewer than
four rounds do not show how much two runs of one server differ, so no speed is claimed from them.
Acceptance does not depend on the machine's speed: its error is that of prompts drawn at random.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Literal, NamedTuple

from sidecar.wording.numbers import aligned, latency
from specdec_tools.measuring.by_prompt import change_by_prompt, prompt_values
from specdec_tools.measuring.conclusion import (
    ACCEPTED,
    Effect,
    MetricChange,
    conclusions,
    even_chance,
    is_out_of_reach,
    more_rounds,
    rounds_for_difference,
    rounds_needed,
)
from specdec_tools.measuring.machines import SWAPPED, TWO_MACHINES
from specdec_tools.measuring.metrics import (
    CACHE,
    LEAST_BATCHES,
    METRICS,
    Interval,
    difference,
    estimate,
    gains_from,
    least_size,
    means_in_turns,
    paired,
    relative_change,
    without_error,
)
from specdec_tools.measuring.sweep_result import (
    LevelResult,
    SweepLevel,
    SweepResult,
    joined,
)

_CONFIDENCE: Final = 0.95  # probability that none of the claimed differences is spurious
# Relative; smaller differences are not claimed, since a machine may drift between two sweeps. Of
# servers that took turns only what nobody would act on is not claimed.
_SMALLEST: Final = 0.03
_SMALLEST_IN_TURNS: Final = 0.01

_TOKENS: Final = "tokens/s"
_MEDIANS: Final = ("TTFT P50", "TPOT P50", _TOKENS)
_SPEEDS: Final = ("TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", _TOKENS)
_BY_MACHINE: Final = (*_SPEEDS, "requests/s")
# Comparable only under the same requests.
_BALANCE: Final = ("requests/s", "cache hit ratio", "preemptions/request")
# Arguments of ``sweep``.
_SENT: Final = ("prompts", "requests", "endpoint", "extra_body", "max_tokens", "rounds")
_LONG: Final = 80  # characters; two digests of prompts have more
_COMPARED: Final = (*ACCEPTED, *_SPEEDS, "requests/s", *CACHE)

Result = Literal["faster", "slower", "mixed", "no_difference_shown", "insufficient_data"]
_VERDICTS: Final[Mapping[Result, str]] = {
    "faster": "{after} is faster than {before}",
    "slower": "{after} is slower than {before}",
    "mixed": "{after} is faster than {before} in some respects and slower in others",
    "no_difference_shown": "no significant difference in speed between {before} and {after}",
    "insufficient_data": "not enough data: sweep with more --rounds and --requests",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of the sweep named ``after`` with the one named ``before``.

    ``gains_from`` is the number of output tokens from which on a request gains time, with its
    range, by level; a level is absent where requests gain or lose at any length, and where that is
    not clear. ``more_rounds`` have an even chance, by level, to decide whether a token takes less
    time; a level that is decided is absent, and so is one without an error. ``conclusions`` are
    sentences on acceptance, time and price, or one that says why there is nothing to compare.
    ``left_out`` names the levels that only one of the two measured. ``notes`` are the caveats.
    """

    before: str
    after: str
    rounds: int  # of the level and sweep with the fewest; 0 without levels
    result: Result
    changes: tuple[MetricChange, ...]  # level by level
    same_requests: bool
    gains_from: Mapping[str, tuple[int, int, int]]  # empty unless they are the same
    more_rounds: Mapping[str, int]
    conclusions: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


class _Pair(NamedTuple):
    """One level in both sweeps."""

    before: LevelResult
    after: LevelResult


def compare(
    before: SweepResult,
    after: SweepResult,
    *,
    names: tuple[str, str],
    swapped: tuple[SweepResult, SweepResult] | None = None,
) -> Comparison:
    """Compares the levels that both have.

    ``swapped`` are the same two servers, each on the other one's machine. The sum over both sweeps
    has each server on each machine, so what the machines differ by meets both.

    The confidence holds for all changes with an error together (Bonferroni).
    """
    in_turns = _took_turns(before, after)
    lasting = 0.0 if before.one_machine and after.one_machine else TWO_MACHINES
    if swapped is not None:
        in_turns = in_turns and _took_turns(*swapped)
        lasting = min(lasting, SWAPPED)
        before = joined(before, swapped[0])
        after = joined(after, swapped[1])

    first = {one.level: one for one in before.levels if one.whole.samples}
    second = {one.level: one for one in after.levels if one.whole.samples}
    pairs = [_Pair(level, second[key]) for key, level in first.items() if key in second]
    unlike = _BALANCE if any(_other_requests(before, after)) else ()
    how = _How(in_turns, lasting)

    uncertain = [
        one
        for one in _changes(pairs, unlike, _CONFIDENCE, how)
        if one.change is not None and one.change.error
    ]
    confidence = 1 - (1 - _CONFIDENCE) / max(1, len(uncertain))
    changes = tuple(_changes(pairs, unlike, confidence, how))

    gains = {}
    if not unlike:
        for level, token, to_first in _times(changes):
            gain = gains_from(token, to_first)
            if gain is not None:
                gains[level] = gain

    before_name, after_name = names
    smallest = _SMALLEST_IN_TURNS if in_turns else _SMALLEST
    rounds = _fewest_rounds(pairs)
    needed = rounds_needed(changes, rounds, smallest)
    concluded = tuple(conclusions(changes, needed)) if pairs else (_nothing(before, after),)
    return Comparison(
        before=before_name,
        after=after_name,
        rounds=rounds,
        result=_result(changes),
        changes=changes,
        same_requests=not unlike,
        gains_from=gains,
        more_rounds=needed,
        conclusions=concluded,
        left_out=(
            *_left_out(before_name, first, second),
            *_left_out(after_name, second, first),
        ),
        notes=tuple(_notes(before, after, pairs, changes, how)),
    )


class _How(NamedTuple):
    """Whether the servers took turns, and the share by which their machines differ anyway."""

    in_turns: bool
    lasting: float


def _took_turns(before: SweepResult, after: SweepResult) -> bool:
    return before.turns is not None and before.turns == after.turns


def _fewest_rounds(pairs: Sequence[_Pair]) -> int:
    """The rounds of the level and side that has the fewest; 0 without levels."""
    return min((len(level.rounds) for pair in pairs for level in pair), default=0)


def _nothing(before: SweepResult, after: SweepResult) -> str:
    """Why there is no level to compare."""
    if before.complete and after.complete:
        return "nothing to compare: the two sweeps have no level in common"
    return (
        "nothing to compare: a sweep was stopped, or all of its requests failed, before both"
        " servers had measured the same level"
    )


def _left_out(
    name: str, levels: Iterable[SweepLevel], others: Container[SweepLevel]
) -> Iterator[str]:
    alone = [str(level) for level in levels if level not in others]
    if alone:
        yield f"only {name} measured {'; '.join(alone)}: not compared"


def _changes(
    pairs: Sequence[_Pair],
    unlike: Sequence[str],
    confidence: float,
    how: _How,
) -> Iterator[MetricChange]:
    """All metrics of all levels; those in ``unlike`` cannot be compared."""
    for pair in pairs:
        same_k = _positions(pair.before) == _positions(pair.after)
        for metric in _COMPARED:
            # Acceptance falls as the number of speculative tokens rises; a length is comparable at
            # any number.
            is_alike = metric not in unlike and (same_k or metric != "acceptance")
            yield _change(metric, pair, confidence, how, is_alike=is_alike)


def _change(
    metric: str,
    pair: _Pair,
    confidence: float,
    how: _How,
    *,
    is_alike: bool,
) -> MetricChange:
    smallest = _SMALLEST
    if metric in ACCEPTED:
        compared = _accepted(metric, pair, confidence)
    elif how.in_turns:
        compared = _speeds_in_turns(metric, pair, confidence, how.lasting)
        smallest = _SMALLEST_IN_TURNS
    else:
        compared = _speeds(metric, pair, confidence)

    before, after, change, gap = compared
    if not is_alike:
        change = None
        gap = None

    effect = _effect(metric, change, gap, smallest)
    return MetricChange(pair.before.level, metric, before, after, change, gap, effect)


class _Compared(NamedTuple):
    """A metric on both sides, the relative change and the difference."""

    before: Interval | None
    after: Interval | None
    change: Interval | None
    difference: Interval | None


def _accepted(metric: str, pair: _Pair, confidence: float) -> _Compared:
    """What does not depend on the machine's speed, by prompt."""
    value = METRICS[metric].value
    before = prompt_values(metric, value(pair.before.whole), pair.before)
    after = prompt_values(metric, value(pair.after.whole), pair.after)
    change, gap = change_by_prompt(before, after, confidence)
    return _Compared(
        None if before is None else before.interval(confidence),
        None if after is None else after.interval(confidence),
        change,
        gap,
    )


def _speeds(metric: str, pair: _Pair, confidence: float) -> _Compared:
    """By how the rounds of each sweep differ."""
    before = _interval(metric, pair.before, confidence)
    after = _interval(metric, pair.after, confidence)
    return _Compared(before, after, relative_change(before, after), difference(before, after))


def _speeds_in_turns(metric: str, pair: _Pair, confidence: float, lasting: float) -> _Compared:
    """The means of the rounds' values; of few rounds, from all requests without an error."""
    rounds = paired(_by_round(metric, pair.before), _by_round(metric, pair.after))
    means = means_in_turns(rounds, confidence, lasting if metric in _BY_MACHINE else 0.0)
    if means is not None:
        return _Compared(*means)

    before, after, change, _ = _speeds(metric, pair, confidence)
    return _Compared(before, after, without_error(change), None)


def _effect(
    metric: str, change: Interval | None, gap: Interval | None, smallest: float
) -> Effect | None:
    if gap is None or not gap.is_clear:
        return None
    # ``change`` is None if the value was 0 before.
    if change is not None and (not change.is_clear or abs(change.value) <= smallest):
        return None

    has_risen = gap.value > 0
    if metric not in _SPEEDS:
        return "higher" if has_risen else "lower"

    is_throughput = metric == _TOKENS
    return "faster" if has_risen == is_throughput else "slower"


def _interval(name: str, level: LevelResult, confidence: float) -> Interval | None:
    """The metric's value, with the error that follows from that of its rounds."""
    return estimate(METRICS[name].value(level.whole), _by_round(name, level), confidence)


def _by_round(name: str, level: LevelResult) -> list[float | None]:
    """The metric's value in each round; none at all if a round is too small to have one."""
    metric = METRICS[name]
    if min(len(part.samples) for part in level.rounds) < least_size(metric.share):
        return []
    return [metric.value(part) for part in level.rounds]


def _has_other_k(pair: _Pair) -> bool:
    """Whether both drafted, with different numbers of speculative tokens."""
    before = _positions(pair.before)
    after = _positions(pair.after)
    return min(before, after) > 0 and before != after


def _positions(level: LevelResult) -> int:
    """The number of speculative tokens; 0 if nothing was drafted."""
    return len(level.whole.acceptance.position_rates)


def _times(changes: Iterable[MetricChange]) -> Iterator[tuple[str, Interval, Interval]]:
    """Each level with its differences in median time per token and to the first token.

    Only levels where both have errors.
    """
    gaps = {(str(one.level), one.metric): one.difference for one in changes}
    for level in dict.fromkeys(level for level, _ in gaps):
        token = gaps[level, "TPOT P50"]
        first = gaps[level, "TTFT P50"]
        if token is not None and first is not None:
            yield level, token, first


def _other_requests(before: SweepResult, after: SweepResult) -> Iterator[str]:
    """In what the requests of the two differ; empty if they sent the same ones."""
    for argument in _SENT:
        first = getattr(before, argument)
        second = getattr(after, argument)
        if first != second:
            option = argument.replace("_", "-")
            both = f" ({first} and {second})"
            yield f"other --{option}{both}" if len(both) < _LONG else f"other --{option}"

    if not (before.complete and after.complete):
        yield "a sweep ended early"
    if any(level.whole.failed for sweep in (before, after) for level in sweep.levels):
        yield "some failed"


def _result(changes: Sequence[MetricChange]) -> Result:
    """The result from the speeds that clearly differ; without any, nothing is claimed."""
    speeds = [one for one in changes if one.metric in _SPEEDS]
    effects = {one.effect for one in speeds if one.effect is not None}
    if not effects:
        has_errors = any(one.change is not None and one.change.error is not None for one in speeds)
        return "no_difference_shown" if has_errors else "insufficient_data"
    if len(effects) > 1:
        return "mixed"
    return "faster" if "faster" in effects else "slower"


def _notes(
    before: SweepResult,
    after: SweepResult,
    pairs: Sequence[_Pair],
    changes: Sequence[MetricChange],
    how: _How,
) -> Iterator[str]:
    if pairs and how.in_turns and how.lasting == TWO_MACHINES:
        yield (
            f"these may be two machines, which differ anyway: the errors have {TWO_MACHINES:.1%} "
            "for two of 1.5% each; measure it by swapping the servers (`sweep --swap` prints how), "
            "or say --same-machine"
        )
    elif pairs and how.in_turns and how.lasting:
        yield f"each server ran on both machines; the errors have {SWAPPED:.1%} for their wandering"
    if how.in_turns and _fewest_rounds(pairs) >= LEAST_BATCHES:
        yield (
            "but for acceptance and length, numbers with an error are means of the rounds' own; "
            "all others are of all requests"
        )
    if before.model != after.model:
        yield f"the model names differ: {before.model} and {after.model}"
    reasons = ", ".join(_other_requests(before, after))
    if reasons and pairs:
        yield f"not the same requests: {reasons}; times, lengths and acceptance depend on that"

    if any(_has_other_k(pair) for pair in pairs):
        yield (
            "the numbers of speculative tokens differ, which changes the acceptance rate: "
            "compare length and TPOT"
        )
    if any(pair.before.whole.others or pair.after.whole.others for pair in pairs):
        yield "vLLM served other clients during a sweep, which affects its times"
    if any(_is_untested(one) for one in changes):
        yield (
            f"acceptance is tested only with {LEAST_BATCHES} prompts or more, each reply's own "
            "numbers (vLLM 0.29 or later with --per-request-spec-decode-metrics summary) and "
            "sweeps that this version saved"
        )
    if pairs and _fewest_rounds(pairs) < LEAST_BATCHES:
        yield (
            f"fewer than {LEAST_BATCHES} rounds are not enough to compare speed: "
            "sweep with --rounds 8"
        )


def _is_untested(one: MetricChange) -> bool:
    """Whether it is an acceptance that could be compared but for the error."""
    return one.metric in ACCEPTED and one.change is not None and one.change.error is None


def comparison_text(comparison: Comparison) -> Iterator[str]:
    """A table of both sides with the changes, and the verdict; times in milliseconds."""
    yield f"{comparison.after} (after) against {comparison.before} (before); times in milliseconds"
    yield ""

    if not comparison.changes:
        yield from comparison.conclusions
    else:
        rows: list[Sequence[str]] = []
        for level, changes in groupby(comparison.changes, lambda change: str(change.level)):
            rows += [(level, "", "", "", "", ""), *map(_row, changes)]
        yield from aligned(("", "before", "after", "change", "error", "clearly"), rows, left=(0, 5))
        yield ""
        verdict = _VERDICTS[comparison.result]
        yield f"verdict: {verdict.format(before=comparison.before, after=comparison.after)}"
        yield from comparison.conclusions
        yield from _balance(comparison) if comparison.same_requests else ()

    yield from (f"note: {note}" for note in (*comparison.notes, *comparison.left_out))


def _balance(comparison: Comparison) -> Iterator[str]:
    for level, token, first in _times(comparison.changes):
        gain = comparison.gains_from.get(level)
        least = ""
        if gain is not None:
            least = "; a request gains time from {} output tokens on ({} to {})".format(*gain)
        yield f"{level}: {_time(token, 'per token')}, {_time(first, 'to the first token')}{least}"


def _time(change: Interval, per: str) -> str:
    size = f"{latency(abs(change.value))} ± {latency(change.error or 0.0)}"
    if change.is_clear:
        return f"{'saves' if change.value < 0 else 'adds'} {size} {per}"

    sign = "-" if change.value < 0 else ""
    return f"no clear difference {per} ({sign}{size})"


def _row(one: MetricChange) -> Sequence[str]:
    shown = METRICS[one.metric].shown
    sides = (shown(None if side is None else side.value) for side in (one.before, one.after))
    change = "-" if one.change is None else f"{one.change.value:+.1%}"
    error = "-" if one.change is None or one.change.error is None else f"±{one.change.error:.1%}"
    return (f"  {one.metric}", *sides, change, error, one.effect or "")


def gate(comparison: Comparison, allowed: float) -> tuple[int, list[str]]:
    """The exit code, and the reasons for it.

    A reason is a level that is slower by the share ``allowed`` or more over its whole interval, or
    one where that cannot be ruled out. Checks medians and throughput, whose errors need the fewest
    requests.
    """
    failed: list[str] = []
    undecided: list[str] = []
    if not comparison.same_requests:
        undecided.append("the sweeps did not send the same requests, or some failed")

    undecided += comparison.left_out
    for one in comparison.changes:
        if one.change is None or one.metric not in _MEDIANS:
            continue

        where = f"{one.metric} at {one.level}"
        slowdown = _slowdown(one.metric, one.change)
        shown = _shown(slowdown)
        error = slowdown.error
        if error is None:
            undecided.append(f"{where}: a slowdown of {allowed:.1%} cannot be ruled out ({shown})")
        elif one.effect == "slower" and slowdown.value - error >= allowed:
            least = slowdown.value - error
            failed.append(
                f"{where} is slower by {shown}, at least {least:.1%}; {allowed:.1%} is allowed"
            )
        elif slowdown.value + error >= allowed:
            more = more_rounds(comparison.rounds, slowdown, abs(slowdown.value - allowed))
            if slowdown.value > allowed:
                more = max(more, rounds_for_difference(one, comparison.rounds))
            undecided.append(
                f"{where}: a slowdown of {allowed:.1%} cannot be ruled out ({shown}){_advice(more)}"
            )

    if failed:
        return 1, failed
    if undecided:
        return 3, undecided
    return 0, []


def _slowdown(metric: str, change: Interval) -> Interval:
    """How much slower it became: the change of a time, the fall of a throughput."""
    return replace(change, value=-change.value) if metric == _TOKENS else change


def _shown(slowdown: Interval) -> str:
    error = ", unknown error" if slowdown.error is None else f" ± {slowdown.error:.1%}"
    return f"{slowdown.value:.1%}{error}"


def _advice(more: int) -> str:
    """What more rounds promise; empty if rounds are not what is missing."""
    if not more:
        return ""
    if is_out_of_reach(more):
        return ": too close to what is allowed for rounds to decide it"
    return f": {even_chance(more)}"
