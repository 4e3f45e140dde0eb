"""How much numbers that never fall have grown over a sliding window."""

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Final

from sidecar.engine.window import Window

HOUR: Final = 3600.0  # seconds: the longer of the two windows that are judged

Row = tuple[float, ...]


class GrowthWindow(Window[Row]):
    """Readings of totals; one that is longer than the one before had 0 there until then."""

    @property
    def seconds(self) -> float:
        """The time that ``growth`` covers: shorter than the window while less is known."""
        return self._latest[0] - self._kept[0][0] if self._latest is not None else 0.0

    @property
    def growth(self) -> Row:
        """The growth over the window that ends at the last reading; empty without one."""
        return _between(self._kept[0][1], self._latest[1]) if self._latest is not None else ()

    def parts(self) -> list[tuple[float, Row]]:
        """The same in about sixty consecutive parts, each with its end."""
        readings = list(self._kept)
        if self._latest is not None and self._latest is not self._kept[-1]:
            readings.append(self._latest)
        return [(at, _between(before, after)) for (_, before), (at, after) in pairwise(readings)]


def _between(before: Sequence[float], after: Sequence[float]) -> Row:
    return tuple(new - old for old, new in zip_longest(before, after, fillvalue=0.0))
