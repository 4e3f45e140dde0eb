"""What requests of different temperatures do to each other.

The requests of a mix are measured together, and those of each of its temperatures alone, at the
same load and round by round. So what a temperature gains or loses is due to its company.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sidecar.errors import InputError
from sidecar.wording.numbers import aligned, counted, milliseconds
from specdec_tools.measuring.metrics import (
    METRICS,
    Interval,
    estimate,
    least_size,
    means_in_turns,
    paired,
    relative_change,
    without_error,
)
from specdec_tools.measuring.sweep_result import LevelResult, Measurement, SweepLevel, SweepResult

_CONFIDENCE: Final = 0.95  # probability that none of the claimed changes is spurious
_MEDIAN: Final = METRICS["TPOT P50"]
_TAIL: Final = METRICS["TPOT P99"]
_GAP: Final = "TPOT P99 - P50"


@dataclass(frozen=True, slots=True)
class MixChange:
    """A time per token, in seconds, of one temperature alone and in the mix.

    ``change`` is mixed / alone - 1, without an error if the rounds are too few or too small; None
    if it is unknown.
    """

    level: SweepLevel
    metric: str
    alone: Interval | None
    mixed: Interval | None
    change: Interval | None


def mixed_levels(
    mix: tuple[tuple[float, float], ...], concurrency: Sequence[int]
) -> list[SweepLevel]:
    """The levels to measure for a mix: each temperature alone, and all of them together."""
    temperatures = [temperature for temperature, _ in mix]
    return [
        SweepLevel(temperature, number, mix)
        for number in concurrency
        for temperature in (*temperatures, None)
    ]


def check_mix(mix: tuple[tuple[float, float], ...], requests: int) -> None:
    """Whether so many requests have each temperature.

    Raises:
        InputError: they are too few for the smallest weight.
    """
    total = sum(weight for _, weight in mix)
    for temperature, weight in mix:
        if SweepLevel(temperature, 1, mix).requests(requests):
            continue

        enough = math.ceil(total / weight)
        raise InputError(
            f"--mix: none of {counted(requests, 'request')} would be at temperature "
            f"{temperature:g}, whose weight is {weight:g} of {total:g}: "
            f"use --requests {enough} or another weight"
        )


def mix_changes(result: SweepResult) -> tuple[MixChange, ...]:
    """What each temperature gains or loses in company.

    The confidence holds for all changes with an error together (Bonferroni).
    """
    changes = list(_changes(result, _CONFIDENCE))
    uncertain = [one for one in changes if one.change is not None and one.change.error]
    confidence = 1 - (1 - _CONFIDENCE) / max(1, len(uncertain))
    return tuple(_changes(result, confidence))


def _changes(result: SweepResult, confidence: float) -> Iterator[MixChange]:
    levels = {one.level: one for one in result.levels}
    for level, alone in levels.items():
        mixed = levels.get(replace(level, temperature=None))
        if not level.mix or level.temperature is None or mixed is None:
            continue

        company = _only(level.temperature, mixed)
        for metric in (_MEDIAN.name, _TAIL.name, _GAP):
            yield _change(metric, alone, company, confidence)


def _change(metric: str, alone: LevelResult, company: LevelResult, confidence: float) -> MixChange:
    """From the means of the rounds' values; of few rounds, from all requests without an error."""
    rounds = paired(_by_round(metric, alone), _by_round(metric, company))
    means = means_in_turns(rounds, confidence)
    if means is not None:
        return MixChange(alone.level, metric, means.before, means.after, means.change)

    before = _interval(metric, alone, confidence)
    after = _interval(metric, company, confidence)
    change = without_error(relative_change(before, after))
    return MixChange(alone.level, metric, before, after, change)


def _only(temperature: float, mixed: LevelResult) -> LevelResult:
    """The mix's requests of one temperature."""
    rounds = []
    for part in mixed.rounds:
        samples = tuple(one for one in part.samples if one.temperature == temperature)
        rounds.append(replace(part, samples=samples, counted=None))
    return replace(mixed, rounds=tuple(rounds))


def _interval(metric: str, level: LevelResult, confidence: float) -> Interval | None:
    return estimate(_value(metric, level.whole), _by_round(metric, level), confidence)


def _by_round(metric: str, level: LevelResult) -> list[float | None]:
    """The metric in each round; none at all if a round is too small to have it."""
    if min(len(part.samples) for part in level.rounds) < _least_requests(metric):
        return []
    return [_value(metric, part) for part in level.rounds]


def _value(metric: str, measured: Measurement) -> float | None:
    """The metric; None with fewer requests than it needs, as for an error."""
    if len(measured.samples) < _least_requests(metric):
        return None
    if metric != _GAP:
        return METRICS[metric].value(measured)

    median = _MEDIAN.value(measured)
    tail = _TAIL.value(measured)
    return None if median is None or tail is None else tail - median


def _least_requests(metric: str) -> int:
    share = _MEDIAN.share if metric == _MEDIAN.name else _TAIL.share
    return least_size(share)


def mix_text(changes: Sequence[MixChange]) -> Iterator[str]:
    """A table of times in milliseconds, and a sentence for each temperature and load."""
    rows = []
    for one in changes:
        sides = (_milliseconds(side) for side in (one.alone, one.mixed))
        rows.append((_named(one.level), one.metric, *sides, *_shown(one.change)))

    header = ("milliseconds per token", "", "alone", "mixed", "change", "error")
    yield from aligned(header, rows, left=(0, 1))
    yield ""

    for one in changes:
        if one.metric == _MEDIAN.name and one.change is not None:
            yield f"{_named(one.level)}: {_sentence(one.change)}"

    if any(one.change is not None and one.change.error is not None for one in changes):
        yield "Times beside an error are means of the rounds' own; others are of all requests."
    if any(one.change is None or one.change.error is None for one in changes):
        yield (
            f"P99 and the gap need {_least_requests(_GAP)} requests of a temperature, and their "
            "errors as many in each round; every error needs 4 rounds."
        )


def _named(level: SweepLevel) -> str:
    """The temperature whose requests are compared, at their load."""
    return f"temperature {level.temperature:g}, concurrency {level.concurrency}"


def _milliseconds(side: Interval | None) -> str:
    return milliseconds(None if side is None else side.value)


def _shown(change: Interval | None) -> tuple[str, str]:
    if change is None:
        return "-", "-"

    error = "-" if change.error is None else f"±{change.error:.1%}"
    return f"{change.value:+.1%}", error


def _sentence(change: Interval) -> str:
    size = f"{abs(change.value):.1%}"
    direction = "longer" if change.value > 0 else "shorter"

    if change.error is None:
        return (
            f"in the mix, the median time per token is {size} {direction} than alone, with an "
            "unknown error"
        )
    if not change.is_clear:
        return (
            "the mix makes no clear difference to the median time per token "
            f"({change.value:+.1%} ± {change.error:.1%})"
        )

    return (
        f"in the mix, the median time per token is {size} ± {change.error:.1%} {direction} than "
        "alone"
    )
