"""Temperatures within one bucket: the row of a range may hide that its parts differ."""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Final, NamedTuple

from sidecar.analysis.certainty.sums import Sums, total

_MOST: Final = 5  # parts of a bucket that are told, those with most draft tokens
_WORTH: Final = 0.5  # of the model's draft tokens, from which on a bucket is looked into
_APART: Final = 0.03  # acceptance rates that differ by so much, and by
_ERRORS: Final = 6.0  # so many standard errors: of a session's requests, about three


class Part(NamedTuple):
    """Finished requests of one temperature, without repetition loops.

    ``share`` is of the bucket's draft tokens, ``error`` the standard error of ``rate`` by requests.
    """

    temperature: float
    rate: float
    error: float
    share: float
    requests: int


def parts(
    by_hundredth: Mapping[int, Sums], label_of: Callable[[int], str], min_requests: int
) -> Mapping[str, tuple[Part, ...]]:
    """The parts of the bucket that holds most draft tokens, coldest first, if they differ.

    They are those with at least ``min_requests`` finished requests. Empty if the least and the
    most accepted of them are not clearly apart.
    """
    buckets: dict[str, dict[int, Sums]] = {}
    for hundredth, sums in by_hundredth.items():
        buckets.setdefault(label_of(hundredth), {})[hundredth] = sums

    everything = total(by_hundredth.values()).drafted
    for label, cells in buckets.items():
        drafted = total(cells.values()).drafted
        if drafted > _WORTH * everything:
            found = _parts(cells, drafted, min_requests)
            return {label: found} if _differ(found) else {}
    return {}


def _parts(cells: Mapping[int, Sums], drafted: int, min_requests: int) -> tuple[Part, ...]:
    told = sorted(cells.items(), key=lambda cell: -cell[1].drafted)[:_MOST]
    return tuple(
        Part(hundredth / 100, sums.rate, sqrt(sums.variance), sums.drafted / drafted, sums.requests)
        for hundredth, sums in sorted(told)
        if sums.requests >= max(min_requests, 2)
    )


def _differ(found: tuple[Part, ...]) -> bool:
    if len(found) < 2:
        return False

    least = min(found, key=lambda part: part.rate)
    most = max(found, key=lambda part: part.rate)
    error = sqrt(least.error**2 + most.error**2)
    return most.rate - least.rate > max(_APART, _ERRORS * error)
