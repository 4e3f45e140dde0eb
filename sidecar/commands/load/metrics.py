"""A sweep's metrics, with their statistics: estimates from batches, and their intervals."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist, stdev
from typing import Final

from sidecar.analysis.distributions import quantile
from sidecar.commands.load.client import Sample
from sidecar.commands.load.sweep_result import LevelMeasurement
from sidecar.commands.load.workload import Load, SweepLevel
from sidecar.wording.numbers import aligned, count, milliseconds, number, ratio

LEAST_BATCHES: Final = 4
_MOST_BATCHES: Final = 20


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and half the width of its confidence interval; ``error`` is None if there are too few values."""

    value: float
    error: float | None = None

    @property
    def high(self) -> float | None:
        """The upper bound."""
        return None if self.error is None else self.value + self.error


def batches(requests: int, in_flight: float, share: float | None = None) -> int | None:
    """The number of batches to cut ``requests`` into, in the order of their ends; None if too few for an error.

    Each batch is large enough for the quantile ``share``, if a quantile is estimated.
    """
    size = max(math.ceil(in_flight), -(-requests // _MOST_BATCHES), least_size(share))
    count = requests // size
    return count if count >= LEAST_BATCHES else None


def least_size(share: float | None) -> int:
    """The smallest batch with, on average, two values beyond the quantile ``share``; 1 if it is not for a quantile.

    The quantiles of smaller batches are less extreme and scatter too little to give the error of the whole.
    """
    return 1 if share is None else math.ceil(round(2 / min(share, 1 - share), 6))


def confidence_factor(confidence: float, degrees: int) -> float:
    """Student's t for a two-sided interval, by the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def estimate(whole: float | None, parts: Iterable[float | None], confidence: float) -> Interval | None:
    """``whole`` with the error that follows from the batches' own values, ``parts``; None if it is unknown."""
    if whole is None:
        return None
    known = [part for part in parts if part is not None]
    if len(known) < LEAST_BATCHES:
        return Interval(whole)
    return Interval(whole, confidence_factor(confidence, len(known) - 1) * stdev(known) / math.sqrt(len(known)))


def relative_change(before: Interval | None, after: Interval | None) -> Interval | None:
    """After / before - 1, with the error that follows from both, to first order."""
    if before is None or after is None or before.value <= 0 or after.value < 0:
        return None
    ratio = after.value / before.value
    if before.error is None or after.error is None:
        return Interval(ratio - 1)
    return Interval(ratio - 1, math.hypot(after.error, ratio * before.error) / before.value)


Values = Mapping[str, float | None]
"""Metrics by name."""

Cells = Mapping[str, str]
"""A row's cells by column."""


@dataclass(frozen=True, slots=True)
class SweepMetric:
    """A column: its value (None if unknown) and how to show it; ``share``: which quantile it is, if it is one."""

    name: str
    value: Callable[[LevelMeasurement], float | None]
    shown: Callable[[float | None], str]
    share: float | None = None

    def interval(self, measurement: LevelMeasurement, cut: int | None, confidence: float) -> Interval | None:
        """Its value with the error that follows from ``cut`` batches of requests."""
        parts = () if cut is None else measurement.batches(cut)
        return estimate(self.value(measurement), map(self.value, parts), confidence)

    def interval_at(self, load: Load, measurement: LevelMeasurement, confidence: float) -> Interval | None:
        """The same with batches at least as long as the number of requests in flight."""
        cut = batches(len(measurement.samples), measurement.in_flight(load), self.share)
        return self.interval(measurement, cut, confidence)


def _quantile(read: Callable[[Sample], float | None], share: float, level: LevelMeasurement) -> float | None:
    return quantile(sorted(value for sample in level.samples if (value := read(sample)) is not None), share)


def _quantiles(
    name: str,
    read: Callable[[Sample], float | None],
    shares: Iterable[float] = (0.5, 0.95, 0.99),
    shown: Callable[[float | None], str] = milliseconds,
) -> Iterator[SweepMetric]:
    """Metrics for quantiles over single requests, by default of a time."""
    for share in shares:
        yield SweepMetric(f"{name} P{share * 100:.0f}", partial(_quantile, read, share), shown, share)


def _acceptance(sample: Sample) -> float | None:
    return sample.accepted_tokens / sample.draft_tokens if sample.draft_tokens else None


def _tokens_per_second(level: LevelMeasurement) -> float | None:
    return sum(sample.tokens or 0 for sample in level.samples) / level.seconds if level.seconds > 0 else None


METRICS: Final[Mapping[str, SweepMetric]] = {
    metric.name: metric
    for metric in (
        SweepMetric("requests", lambda level: len(level.samples), count),
        SweepMetric("failed", lambda level: level.failed, count),
        *_quantiles("TTFT", lambda sample: sample.ttft),
        *_quantiles("TPOT", lambda sample: sample.tpot),
        SweepMetric("tokens/s", _tokens_per_second, number),
        SweepMetric("draft tokens", lambda level: level.acceptance.draft_tokens, count),
        SweepMetric("acceptance", lambda level: level.acceptance.rate, ratio),
        *_quantiles("acceptance", _acceptance, (0.1, 0.5, 0.9), ratio),
        SweepMetric("length", lambda level: level.acceptance.length, ratio),
    )
}
"""By name. Times are in seconds (in the table: milliseconds), ratios from 0 to 1."""


def values(measurement: LevelMeasurement) -> Values:
    """All metrics."""
    return {name: metric.value(measurement) for name, metric in METRICS.items()}


def cells(metrics: Values) -> Cells:
    """The same as text for the table."""
    return {name: METRICS[name].shown(value) for name, value in metrics.items()}


def table(levels: Iterable[tuple[SweepLevel, Iterable[Cells]]], columns: Sequence[str]) -> list[str]:
    """All levels with their rows; a column name that starts like the one before it is cut to its last word.

    Below a level's first row, a row may have a ``temperature`` of its own.
    """
    rows = []
    for level, level_cells in levels:
        for place, row in enumerate(level_cells):
            first = (row.get("temperature", ""), "") if place else (str(level.workload), str(level.load))
            rows.append((*first, *(row.get(column, "") for column in columns)))
    before = ("", *columns)
    shown = [name.split()[-1] if name[:4] == before[place][:4] else name for place, name in enumerate(columns)]
    return aligned(("temperature", "load", *shown), rows)
