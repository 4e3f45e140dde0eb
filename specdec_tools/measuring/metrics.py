"""A sweep's metrics, and their errors, which follow from batches of requests."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean, stdev
from typing import Final, NamedTuple, TypeVar

from sidecar.analysis.distributions import quantile
from sidecar.wording.numbers import count, milliseconds, number, ratio
from specdec_tools.commands.distributions import confidence_factor
from specdec_tools.measuring.client import Sample
from specdec_tools.measuring.sweep_result import Measurement

LEAST_BATCHES: Final = 4


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and half the width of its confidence interval.

    ``error`` is None if there are too few values. ``lasting`` is the part of it that no number of
    rounds makes smaller: what two machines differ by.
    """

    value: float
    error: float | None = None
    lasting: float = 0.0

    @property
    def is_clear(self) -> bool:
        """Whether the value is known to differ from 0."""
        return self.error is not None and abs(self.value) > self.error


def least_size(share: float | None) -> int:
    """The smallest batch with, on average, two values beyond the quantile ``share``.

    1 if ``share`` is None, for a metric that is no quantile. The quantiles of smaller batches are
    less extreme and scatter too little to give the error of the whole.
    """
    return 1 if share is None else math.ceil(round(2 / min(share, 1 - share), 6))


def estimate(
    whole: float | None, parts: Iterable[float | None], confidence: float
) -> Interval | None:
    """``whole`` with the error that follows from the batches' own values, ``parts``.

    None if ``whole`` is unknown.
    """
    if whole is None:
        return None

    known = [part for part in parts if part is not None]
    if len(known) < LEAST_BATCHES:
        return Interval(whole)

    return Interval(whole, _error(known, confidence))


def _error(parts: Sequence[float], confidence: float) -> float:
    """Half the width of the confidence interval of the parts' mean."""
    factor = confidence_factor(confidence, len(parts) - 1)
    return factor * stdev(parts) / math.sqrt(len(parts))


def relative_change(before: Interval | None, after: Interval | None) -> Interval | None:
    """After / before - 1, with the error that follows from both, to first order."""
    if before is None or after is None or before.value <= 0 or after.value < 0:
        return None

    ratio = after.value / before.value
    if before.error is None or after.error is None:
        return Interval(ratio - 1)

    error = math.hypot(after.error, ratio * before.error) / before.value
    return Interval(ratio - 1, error)


def difference(before: Interval | None, after: Interval | None) -> Interval | None:
    """After - before, with the error that follows from both; None without both errors."""
    if before is None or after is None or before.error is None or after.error is None:
        return None
    return Interval(after.value - before.value, math.hypot(before.error, after.error))


def without_error(interval: Interval | None) -> Interval | None:
    """The same value, of which nothing can be claimed."""
    return None if interval is None else Interval(interval.value)


Rounds = Sequence[tuple[float | None, float | None]]
"""A metric before and after in each round of two servers that took turns."""


def paired(before: Iterable[float | None], after: Iterable[float | None]) -> Rounds:
    """The values round by round, without rounds that only one of the two has."""
    return list(zip(before, after, strict=False))


class InTurns(NamedTuple):
    """A metric on both sides of servers that took turns, as the means of the rounds' values.

    ``change`` is after / before - 1, None if ``before`` is 0; ``difference`` is after - before.
    """

    before: Interval
    after: Interval
    change: Interval | None
    difference: Interval


def means_in_turns(rounds: Rounds, confidence: float, lasting: float = 0.0) -> InTurns | None:
    """The means of both sides, with errors that follow from how the rounds differ.

    What slows both servers down in a round leaves its share of the change's error as it is. None
    with fewer than ``LEAST_BATCHES`` rounds that both have.

    With ``lasting``, the share by which their machines differ, each machine also wanders: rounds
    that follow each other are alike, so the errors follow from four blocks of rounds (Ibragimov and
    Müller, 2010).
    """
    known = [(old, new) for old, new in rounds if old is not None and new is not None]
    if len(known) < LEAST_BATCHES:
        return None
    if lasting:
        known = _blocks(known)

    before = _mean([old for old, _ in known], confidence)
    after = _mean([new for _, new in known], confidence)
    return InTurns(
        before,
        after,
        _with(lasting, _ratio_of_means(known, before.value, after.value, confidence)),
        _with(lasting * before.value, _mean([new - old for old, new in known], confidence)),
    )


def _blocks(rounds: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The means of so many runs of rounds as an error needs, of about the same length."""
    edges = [len(rounds) * number // LEAST_BATCHES for number in range(LEAST_BATCHES + 1)]
    blocks = []
    for begin, end in pairwise(edges):
        block = rounds[begin:end]
        blocks.append((fmean(old for old, _ in block), fmean(new for _, new in block)))
    return blocks


_Known = TypeVar("_Known", Interval, Interval | None)


def _with(lasting: float, interval: _Known) -> _Known:
    """With a further error, which rounds do not make smaller."""
    if interval is None or interval.error is None:
        return interval
    return replace(interval, error=lasting + interval.error, lasting=lasting)


def _mean(values: Sequence[float], confidence: float) -> Interval:
    mean = fmean(values)
    return Interval(mean, _error(values, confidence))


def _ratio_of_means(
    rounds: Sequence[tuple[float, float]], before: float, after: float, confidence: float
) -> Interval | None:
    """After / before - 1, with its error to first order (Cochran, Sampling Techniques, 2.11)."""
    if before <= 0:
        return None

    ratio = after / before
    residuals = [(new - ratio * old) / before for old, new in rounds]
    return Interval(ratio - 1, _error(residuals, confidence))


def gains_from(token: Interval, first: Interval) -> tuple[int, int, int] | None:
    """A request of n tokens takes the time to the first, and n - 1 times that per token."""
    if not (token.is_clear and first.is_clear and token.value < 0 < first.value):
        return None

    saved = -token.value
    saved_error = token.error or 0.0
    cost = first.value
    cost_error = first.error or 0.0

    one = 1 + math.ceil(cost / saved)
    low = 1 + math.ceil((cost - cost_error) / (saved + saved_error))
    high = 1 + math.ceil((cost + cost_error) / (saved - saved_error))
    return one, low, high


@dataclass(frozen=True, slots=True)
class SweepMetric:
    """Its value (None if unknown) and how to show it; ``share`` is None unless it is a quantile."""

    name: str
    value: Callable[[Measurement], float | None]
    shown: Callable[[float | None], str]
    share: float | None = None


def _quantile(
    read: Callable[[Sample], float | None], share: float, measured: Measurement
) -> float | None:
    values = [read(sample) for sample in measured.samples]
    known = sorted(value for value in values if value is not None)
    return quantile(known, share)


def _quantiles(
    name: str,
    read: Callable[[Sample], float | None],
    shares: Iterable[float] = (0.5, 0.95, 0.99),
    shown: Callable[[float | None], str] = milliseconds,
) -> Iterator[SweepMetric]:
    """Metrics for quantiles over single requests, by default of a time."""
    for share in shares:
        yield SweepMetric(
            f"{name} P{share * 100:.0f}", partial(_quantile, read, share), shown, share
        )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _by_name(*metrics: SweepMetric) -> Mapping[str, SweepMetric]:
    return {metric.name: metric for metric in metrics}


TIMES: Final = _by_name(
    SweepMetric("requests", lambda measured: len(measured.samples), count),
    SweepMetric("failed", lambda measured: measured.failed, count),
    *_quantiles("TTFT", lambda sample: sample.ttft),
    *_quantiles("TPOT", lambda sample: sample.tpot),
    SweepMetric("tokens/s", lambda measured: _ratio(measured.tokens, measured.seconds), number),
    SweepMetric(
        "requests/s", lambda measured: _ratio(len(measured.samples), measured.seconds), ratio
    ),
)
"""In seconds (in the table: milliseconds)."""

ACCEPTANCE: Final = _by_name(
    SweepMetric("draft tokens", lambda measured: measured.acceptance.draft_tokens, count),
    SweepMetric("acceptance", lambda measured: measured.acceptance.rate, ratio),
    *_quantiles(
        "acceptance",
        lambda sample: _ratio(sample.accepted_tokens, sample.draft_tokens),
        (0.1, 0.5, 0.9),
        ratio,
    ),
    SweepMetric("length", lambda measured: measured.acceptance.length, ratio),
)
CACHE: Final = _by_name(
    SweepMetric("cache hit ratio", lambda measured: _ratio(measured.hits, measured.queries), ratio),
    SweepMetric("KV cache tokens", lambda measured: measured.capacity_tokens, count),
    SweepMetric(
        "preemptions/request",
        lambda measured: _ratio(measured.preemptions, len(measured.samples)),
        ratio,
    ),
)
METRICS: Final = {**TIMES, **ACCEPTANCE, **CACHE}
