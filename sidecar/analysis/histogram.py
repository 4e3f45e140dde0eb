"""Observations counted in fixed buckets, as in a Prometheus histogram."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from sidecar.analysis.report import Distribution


class Histogram:
    """Counts by bucket, each bucket's upper edge inclusive; the last bucket takes the rest."""

    __slots__ = ("_counts", "edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        """``edges`` are finite and ascending."""
        self.edges = tuple(edges)
        self.sum = 0.0
        self._counts = [0] * (len(self.edges) + 1)

    def observe(self, value: float) -> None:
        """Adds one observation."""
        self._counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    def snapshot(self) -> Distribution:
        """The observations so far."""
        return Distribution(self.edges, tuple(accumulate(self._counts)), self.sum)


# Few edges, since each costs one series per label set. 0.5 and 0.65 are among them, so that "below the threshold" is
# exact with the default thresholds.
ACCEPTANCE_EDGES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0)
WINDOW_EDGES = (0.5, 0.65, 0.8, 1.0)  # of an engine's windows
USAGE_EDGES = (0.75, 0.9, 1.0)
