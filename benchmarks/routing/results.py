"""What a run gives, and the cells of a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Final

from benchmarks.routing.fleet import Served
from sidecar.analysis.distributions import quantile

HEADER: Final = (
    *("load", "servers", "ms a token: T 0", "T 1", "P50", "P99", "P99 against all speculating"),
    *("TTFT P50, ms", "P99", "tokens/s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run: milliseconds, and tokens a second of all servers."""

    cold: float
    hot: float
    median: float
    high: float
    first_median: float
    first_high: float
    tokens_per_second: float


def result(served: Served) -> Result:
    """Means by temperature, and quantiles of all requests."""
    every = sorted(value for values in served.per_token.values() for value in values)
    first = sorted(served.first_token)
    return Result(
        cold=1000 * fmean(served.per_token[0.0]),
        hot=1000 * fmean(served.per_token[1.0]),
        median=1000 * _quantile(every, 0.5),
        high=1000 * _quantile(every, 0.99),
        first_median=1000 * _quantile(first, 0.5),
        first_high=1000 * _quantile(first, 0.99),
        tokens_per_second=served.tokens_per_second,
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return quantile(values, share) or 0.0


def cells(results: Sequence[Result], *, change: str) -> Iterator[str]:
    """Those of HEADER after the first two, averaged over the runs."""
    yield f"{fmean(one.cold for one in results):.1f}"
    yield f"{fmean(one.hot for one in results):.1f}"
    yield f"{fmean(one.median for one in results):.1f}"
    yield f"{fmean(one.high for one in results):.1f}"
    yield change
    yield f"{fmean(one.first_median for one in results):,.0f}"
    yield f"{fmean(one.first_high for one in results):,.0f}"
    yield f"{fmean(one.tokens_per_second for one in results):,.0f}"


def high_change(results: Sequence[Result], baseline: Sequence[Result]) -> str:
    """Of P99 of the time per token, with two standard errors over the arrivals."""
    return relative_change([one.high for one in results], [one.high for one in baseline])


def relative_change(values: Sequence[float], baseline: Sequence[float]) -> str:
    """The mean relative change between runs of the same arrivals, with two standard errors."""
    changes = [now / before - 1 for now, before in zip(values, baseline, strict=True)]
    if len(changes) == 1:
        return f"{changes[0]:+.0%}"
    error = stdev(changes) / sqrt(len(changes))
    return f"{fmean(changes):+.0%} ± {2 * error:.0%}"
