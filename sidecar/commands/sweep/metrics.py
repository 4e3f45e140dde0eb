"""The metrics that ``sweep`` and ``compare`` show for a server at a level, and the table that they share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from sidecar.analysis.distributions import quantile
from sidecar.commands.estimates import Interval, batches, estimate
from sidecar.commands.sweep.client import Sample
from sidecar.commands.sweep.measured import Measured
from sidecar.commands.sweep.workload import Level, Load
from sidecar.commands.tables import aligned, count, milliseconds, number, ratio


@dataclass(frozen=True, slots=True)
class Metric:
    """A column: its value (None if unknown) and how to show it; ``share``: which quantile it is, if it is one."""

    name: str
    of: Callable[[Measured], float | None]
    shown: Callable[[float | None], str]
    share: float | None = None

    def interval(self, measured: Measured, cut: int | None, confidence: float) -> Interval | None:
        """Its value with the error that follows from ``cut`` batches of requests."""
        parts = () if cut is None else measured.parts(cut)
        return estimate(self.of(measured), map(self.of, parts), confidence)

    def interval_at(self, load: Load, measured: Measured, confidence: float) -> Interval | None:
        """The same with batches at least as long as the number of requests in flight."""
        cut = batches(len(measured.samples), measured.in_flight(load), self.share)
        return self.interval(measured, cut, confidence)


def _quantile(of: Callable[[Sample], float | None], share: float, measured: Measured) -> float | None:
    return quantile(sorted(known for one in measured.samples if (known := of(one)) is not None), share)


def _quantiles(
    name: str,
    of: Callable[[Sample], float | None],
    shares: Iterable[float] = (0.5, 0.95, 0.99),
    shown: Callable[[float | None], str] = milliseconds,
) -> Iterable[Metric]:
    """Metrics for quantiles over single requests, by default of a time."""
    for share in shares:
        yield Metric(f"{name} P{share * 100:.0f}", partial(_quantile, of, share), shown, share)


def _accepted(one: Sample) -> float | None:
    return one.accepted_tokens / one.draft_tokens if one.draft_tokens else None


def _tokens_per_second(measured: Measured) -> float | None:
    return sum(one.tokens or 0 for one in measured.samples) / measured.seconds if measured.seconds > 0 else None


METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric("requests", lambda one: len(one.samples), count),
        Metric("failed", lambda one: one.failed, count),
        *_quantiles("TTFT", lambda one: one.ttft),
        *_quantiles("TPOT", lambda one: one.tpot),
        Metric("tokens/s", _tokens_per_second, number),
        Metric("draft tokens", lambda one: one.acceptance.draft_tokens, count),
        Metric("acceptance", lambda one: one.acceptance.rate, ratio),
        *_quantiles("acceptance", _accepted, (0.1, 0.5, 0.9), ratio),
        Metric("length", lambda one: one.acceptance.length, ratio),
    )
}
"""By name. Times are in seconds (in the table: milliseconds), ratios from 0 to 1."""

Values = Mapping[str, float | None]
"""Metrics by name."""

Cells = Mapping[str, str]
"""A row's cells by column."""


def values(measured: Measured) -> Values:
    """All metrics."""
    return {name: metric.of(measured) for name, metric in METRICS.items()}


def cells(found: Values) -> Cells:
    """The same as text for the table."""
    return {name: METRICS[name].shown(value) for name, value in found.items()}


def table(levels: Iterable[tuple[Level, Sequence[Cells]]], columns: Sequence[str]) -> list[str]:
    """All levels with their rows; a column name that starts like the one before it is cut to its last word.

    Below a level's first row, a row may have a ``temperature`` of its own.
    """
    rows = []
    for level, found in levels:
        for place, row in enumerate(found):
            first = (row.get("temperature", ""), "") if place else (str(level.workload), str(level.load))
            rows.append((*first, *(row.get(column, "") for column in columns)))
    before = ("", *columns)
    shown = [name.split()[-1] if name[:4] == before[place][:4] else name for place, name in enumerate(columns)]
    return aligned(("temperature", "load", *shown), rows)
