"""The last hour, a value a minute, of what the status page draws as lines.

It is bounded: at most 512 series of 60 single-precision numbers.
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.analysis.judgement import Judgement
from sidecar.analysis.pressure import pressure
from sidecar.analysis.report import ModelReport, Report

MINUTE: Final = 60.0  # seconds
MINUTES: Final = 60
_MOST_SERIES: Final = 512
_LARGEST: Final = 1e38  # what single precision holds; neither is NaN kept


class Quantity(StrEnum):
    """What a series is of; seconds and ratios, as in the report."""

    SPEEDUP = "speedup"
    ACCEPTANCE = "acceptance"
    KV_CACHE = "kv_cache_peak"  # the fullest engine's within the minute
    GAP = "gap_seconds"  # TPOT's P99 - P50, the widest engine's
    FIRST_TOKEN = "first_token_p99_seconds"  # noqa: S105 - no password
    WAITING = "requests_waiting"


class Line(NamedTuple):
    """A series: of a model, and of one temperature or, with None, of all requests."""

    model_name: str
    temperature: str | None
    quantity: Quantity


class History:
    """Each minute's latest value of each line; what is not known then is a gap."""

    def __init__(self) -> None:
        self._values: dict[Line, array[float]] = {}
        self._minute: int | None = None

    @property
    def latest_minute(self) -> float | None:
        """When the latest minute began, in Unix seconds; None before the first."""
        return None if self._minute is None else self._minute * MINUTE

    @property
    def lines(self) -> Sequence[Line]:
        """Those with a value within the hour, in the order in which they were first known."""
        return tuple(self._values)

    def take(self, report: Report) -> None:
        """What the report says counts for its minute; while vLLM cannot be read, nothing does."""
        minute = int(report.at // MINUTE)
        self._forget_until(minute)
        for model in report.models if report.scrape.up else ():
            for line, value in _values(model):
                values = self._values.get(line)
                if values is None:
                    if len(self._values) >= _MOST_SERIES:
                        continue
                    values = self._values[line] = array("f", [math.nan] * MINUTES)
                values[minute % MINUTES] = value

    def values(self, line: Line) -> list[float | None]:
        """Its values by minute, the oldest first; None where nothing was known."""
        values = self._values.get(line)
        if values is None or self._minute is None:
            return [None] * MINUTES
        first = self._minute + 1
        hour = (values[(first + place) % MINUTES] for place in range(MINUTES))
        return [None if math.isnan(value) else value for value in hour]

    def _forget_until(self, minute: int) -> None:
        """Makes room for the minutes since the last one; of a clock set back, nothing is kept."""
        last = self._minute
        self._minute = minute
        if last is None or minute == last:
            return
        if minute < last or minute - last >= MINUTES:
            self._values.clear()
            return

        for line, values in [*self._values.items()]:
            for passed in range(last + 1, minute + 1):
                values[passed % MINUTES] = math.nan
            if all(map(math.isnan, values)):
                del self._values[line]


def _values(model: ModelReport) -> Iterator[tuple[Line, float]]:
    """What is known of a model now."""
    name = model.model_name
    speedup = None if model.speed is None else model.speed.speedup
    found: list[tuple[str | None, Quantity, float | None]] = [
        (None, Quantity.SPEEDUP, None if speedup is None else speedup.ratio),
        (None, Quantity.ACCEPTANCE, _rate(model.judgement)),
    ]
    for part in model.temperatures:
        ratio = None if part.speedup is None else part.speedup.ratio
        found.append((part.temperature, Quantity.SPEEDUP, ratio))
        found.append((part.temperature, Quantity.ACCEPTANCE, _rate(part.judgement)))

    worst = pressure(model)
    gap = None if worst.per_token is None else worst.per_token.gap_seconds
    first = None if worst.first_token is None else worst.first_token.quantiles[0.99]
    found += [
        (None, Quantity.KV_CACHE, worst.kv_cache_peak),
        (None, Quantity.GAP, gap),
        (None, Quantity.FIRST_TOKEN, first),
        (None, Quantity.WAITING, worst.waiting),
    ]

    for temperature, quantity, value in found:
        if value is not None and abs(value) <= _LARGEST:
            yield Line(name, temperature, quantity), value


def _rate(judgement: Judgement) -> float | None:
    return (judgement.judged or judgement.evidence.window).rate
