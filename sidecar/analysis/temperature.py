"""Which bucket a request's temperature falls into."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

GREEDY: Final = "0"
DEFAULT: Final = "default"  # the request has no temperature, and none is configured
UNKNOWN: Final = "unknown"  # the source could not read it, or it is invalid

_GREEDY_BELOW: Final = 1e-5  # vLLM treats lower temperatures as greedy (`_SAMPLING_EPS` in its sampling parameters)
_EDGES: Final = (0.0, 0.3, 0.5, 0.7, 1.0)


class TemperatureBuckets:
    """Upper edges, inclusive, and the labels they make: ``0``, ``0-0.3``, …, ``1+``, ``default``, ``unknown``.

    ``default_temperature`` is that of requests that specify none; None if it is unknown.
    """

    def __init__(self, edges: Sequence[float] = _EDGES, default_temperature: float | None = None) -> None:
        self._edges = tuple(edge for edge in edges if edge >= _GREEDY_BELOW)
        lower = (0.0, *self._edges)
        between = tuple(f"{low:g}-{high:g}" for low, high in pairwise(lower))
        self._labels = (*between, f"{lower[-1]:g}+")
        self._default = DEFAULT if default_temperature is None else self._of(default_temperature)

    @property
    def labels(self) -> tuple[str, ...]:
        """Every possible label, coldest first, then ``default`` and ``unknown``."""
        return (GREEDY, *self._labels, DEFAULT, UNKNOWN)

    def label(self, temperature: float | None) -> str:
        """The bucket of a temperature; None if the request has none."""
        return self._default if temperature is None else self._of(temperature)

    def _of(self, temperature: float) -> str:
        if not 0 <= temperature < math.inf:
            return UNKNOWN
        if temperature < _GREEDY_BELOW:
            return GREEDY
        return self._labels[bisect_left(self._edges, temperature)]
