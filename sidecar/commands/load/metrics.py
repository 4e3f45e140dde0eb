"""A sweep's metrics and tables, and the errors of metrics, which follow from batches of requests."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import NormalDist, stdev
from typing import Final

from sidecar.analysis.distributions import quantile
from sidecar.commands.load.client import Sample
from sidecar.commands.load.sweep_result import LevelMeasurement, SweepLevel
from sidecar.wording.numbers import aligned, count, milliseconds, number, ratio

LEAST_BATCHES: Final = 4


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and half the width of its confidence interval; ``error`` is None if there are too few values."""

    value: float
    error: float | None = None

    @property
    def high(self) -> float | None:
        """The upper bound."""
        return None if self.error is None else self.value + self.error


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

    def interval(self, measurement: LevelMeasurement, cut: int, confidence: float) -> Interval | None:
        """Its value with the error that follows from ``cut`` batches of requests; without an error if they are few."""
        return estimate(self.value(measurement), map(self.value, measurement.batches(cut)), confidence)


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


def _requests(level: LevelMeasurement) -> float:
    return len(level.samples)


def _tokens(level: LevelMeasurement) -> float:
    return sum(sample.tokens or 0 for sample in level.samples)


def _a_second(amount: Callable[[LevelMeasurement], float], level: LevelMeasurement) -> float | None:
    return amount(level) / level.seconds if level.seconds > 0 else None


METRICS: Final[Mapping[str, SweepMetric]] = {
    metric.name: metric
    for metric in (
        SweepMetric("requests", _requests, count),
        SweepMetric("failed", lambda level: level.failed, count),
        *_quantiles("TTFT", lambda sample: sample.ttft),
        *_quantiles("TPOT", lambda sample: sample.tpot),
        SweepMetric("tokens/s", partial(_a_second, _tokens), number),
        SweepMetric("requests/s", partial(_a_second, _requests), ratio),
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


def of_level(level: SweepLevel) -> Cells:
    """The cells that name a level."""
    return {"temperature": f"{level.temperature:g}", "concurrency": f"{level.concurrency}"}


def table(rows: Iterable[Cells], columns: Sequence[str]) -> list[str]:
    """The rows with the level and these columns; a column name that starts like the one before is cut to its end."""
    columns = ("temperature", "concurrency", *columns)
    shown = [name.split()[-1] if name[:4] == before[:4] else name for before, name in pairwise(("", *columns))]
    return aligned(shown, [[row.get(column, "") for column in columns] for row in rows])
