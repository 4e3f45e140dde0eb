"""The values of a sliding window, in narrow bins: memory does not grow with the rate."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from sidecar.analysis.windows.sums import SlidingSums

ACCEPTANCE_BIN: Final = 0.005  # width of an acceptance rate's bin
RELATIVE_BIN: Final = 1.02  # the bin of a relative value ends at its start times this
_LOG_BIN: Final = math.log(RELATIVE_BIN)
_LEAST: Final = 1e-6  # lower values share a bin with it
_MOST: Final = 1e6  # higher ones share a bin with it


def acceptance_bin(rate: float) -> int:
    """The bin of an acceptance rate, 0 to 1."""
    return int(rate / ACCEPTANCE_BIN)


def relative_bin(value: float) -> int:
    """The bin of a value of any unit, at least 0, whose relative error matters.

    Every whole number below 50 has its own.
    """
    bounded = min(max(value, _LEAST), _MOST)
    return math.floor(math.log(bounded) / _LOG_BIN)


class Ordered:
    """Values in ascending order, each with how often it occurs; equal ones are stored once."""

    def __init__(self, counts: Sequence[tuple[float, int]]) -> None:
        """``counts`` are ascending values and their counts, at least 1."""
        self.counts = counts
        self._ends = list(accumulate(count for _, count in counts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> float:
        value, _ = self.counts[bisect_right(self._ends, index)]
        return value

    def merged(self, other: "Ordered") -> "Ordered":
        """Both together."""
        return Ordered(sorted((*self.counts, *other.counts)))

    @property
    def mean(self) -> float | None:
        """The mean of the values; None without any."""
        if not self.counts:
            return None
        return sum(value * count for value, count in self.counts) / len(self)


class Recent:
    """The values of a sliding window, in bins.

    A value stands for all of its bin: it is the latest that the bin received. So every quantile is
    within one bin of the exact one, and exact where a bin has a single value.
    """

    def __init__(self, window: float, bin_of: Callable[[float], int], slices: int = 60) -> None:
        """``window`` is in seconds; ``bin_of`` never decreases with the value."""
        self._bin_of = bin_of
        self._counts = SlidingSums[int, int](window, slices)
        self._values: dict[int, float] = {}

    def add(self, at: float, values: Sequence[float]) -> None:
        """Adds values of the time ``at``."""
        bins = [self._bin_of(value) for value in values]
        counts: dict[int, int] = {}  # a Counter costs more than these few values do
        for bin_ in bins:
            counts[bin_] = counts.get(bin_, 0) + 1
        self._counts.add(at, counts)
        self._values.update(zip(bins, values, strict=True))

    def drop(self, now: float) -> None:
        """Forgets what is older than the window that ends at ``now``."""
        self._counts.drop(now)

    def forget(self, before: float) -> None:
        """Forgets what is from ``before`` that time."""
        self._counts.forget(before)

    def ordered(self) -> Ordered:
        """The values of the window that ended at the last ``drop`` or ``add``."""
        return Ordered(
            [(self._values[bin_], count) for bin_, count in sorted(self._counts.sums.items())]
        )
