"""Which bucket a request's temperature falls into."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from sidecar.requests.messages import OTHER

GREEDY: Final = "0"
_EDGES: Final = (0.0, 0.3, 0.5, 0.7, 1.0)


class TemperatureBuckets:
    """Upper edges, inclusive, and their labels: ``0``, ``0-0.3``, …, ``1+``."""

    def __init__(self, edges: Sequence[float] = _EDGES) -> None:
        """``edges`` are ascending and whole hundredths."""
        above = tuple(edge for edge in edges if edge > 0)
        lower = (0.0, *above)
        self._edges = (0, *(round(100 * edge) for edge in above))
        self.labels = (GREEDY, *(f"{low:g}-{high:g}" for low, high in pairwise(lower)), f"{lower[-1]:g}+")

    def label(self, hundredths: int | str) -> str:
        """The bucket of a temperature in hundredths, rounded up; ``other`` for those past the plug-in's limit."""
        return OTHER if isinstance(hundredths, str) else self.labels[bisect_left(self._edges, hundredths)]
