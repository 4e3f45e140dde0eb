"""How many of a request's steps drafted, where not every step does (n-gram, suffix, a K that falls to 0 under load).

A step that drafts accepts at most K tokens, so ``accepted / K`` steps must have drafted; the others, a request's
*spare* steps, drafted for a share that is taken as the same throughout a temperature bucket. Windows in which the
buckets' spare steps stand in different proportions tell those shares:

    drafts - accepted / K = sum over buckets (share * spare steps)

by least squares on the growth of vLLM's counters. Taking ``accepted / K`` off both sides first leaves the fit only what
the requests' own numbers do not say, and bounds the answer on both sides.
"""

import math
from collections.abc import Sequence
from typing import Final

from sidecar.analysis.attribution.least_squares import LeastSquares, Solution
from sidecar.analysis.attribution.ledger import Slot, accepted_slot, spare_slot
from sidecar.analysis.attribution.window import Window

_UNSEEN: Final = 0.1  # of a window's steps: less than that is the noise of spreading requests over windows
_ENOUGH_WINDOWS: Final = 20  # fewer, and the standard errors mean little themselves
# Seconds. What is off in one window is off in the next as well, since requests' steps are spread evenly over their
# lives: taken as observations of their own, short windows would make the errors look smaller than they are.
_OBSERVATION: Final = 1.0
_RESCALE: Final = (0.8, 1.25)


class Drafting:
    """The share of spare steps that draft, by bucket; the newest ``memory`` seconds count."""

    def __init__(self, buckets: int, memory: float) -> None:
        self._buckets = buckets
        self._memory = memory
        self._fit = LeastSquares(buckets + 1, most=1.0)  # the last unknown is the traffic that no one told of
        self._columns = [0.0] * (buckets + 1)
        self._target = 0.0
        self._row: dict[int, float] = {}  # of the windows since the last observation, as are the next two
        self._row_target = self._row_seconds = 0.0
        self._solution = Solution((0.0,) * (buckets + 1), (math.inf,) * (buckets + 1))
        self._scale = 1.0

    def observe(self, window: Window, brought: Sequence[float], tokens_per_draft: float) -> None:
        """Adds a closed window; ``tokens_per_draft`` is K."""
        keep = math.exp(-window.seconds / self._memory)
        growth = window.growth
        counted = growth.drafts - growth.accepted / tokens_per_draft
        target = counted - brought[Slot.KNOWN_DRAFTS] + brought[Slot.KNOWN_ACCEPTED] / tokens_per_draft
        row = {bucket: brought[spare_slot(bucket)] for bucket in range(self._buckets)}
        unseen = growth.emitted - brought[Slot.EMITTED]
        row[self._buckets] = unseen if unseen > _UNSEEN * growth.emitted else 0.0
        row = {index: steps for index, steps in row.items() if steps > 0}
        self._target = self._target * keep + target
        self._columns = [column * keep + row.get(index, 0.0) for index, column in enumerate(self._columns)]
        if row:
            self._row = {index: self._row.get(index, 0.0) + row.get(index, 0.0) for index in self._row.keys() | row}
            self._row_target += target
        self._row_seconds += window.seconds
        # Polls are not quite as far apart as they should be.
        if self._row_seconds < 0.9 * _OBSERVATION:
            return
        self._fit.fade(math.exp(-self._row_seconds / self._memory))
        if self._row:
            # Steps draft or not by chance, so the variance of a window grows with its steps.
            self._fit.add(self._row, self._row_target, 1 / max(sum(self._row.values()), 1.0))
        self._row, self._row_target, self._row_seconds = {}, 0.0, 0.0

    def solve(self) -> None:
        """Works the shares out anew, so that they add up to what vLLM counted."""
        self._solution = self._fit.solve()
        fitted = sum(map(float.__mul__, self._columns, self._solution.values))
        self._scale = min(max(self._target / fitted, _RESCALE[0]), _RESCALE[1]) if fitted > 0 else 1.0

    def share(self, bucket: int) -> float:
        """The share of the bucket's spare steps that draft, 0 to 1."""
        return min(self._solution.values[bucket] * self._scale, 1.0)

    def drafts(self, sums: Sequence[float], tokens_per_draft: float) -> float:
        """Drafts of all inferred requests, as fitted."""
        spare = sum(self.share(bucket) * sums[spare_slot(bucket)] for bucket in range(self._buckets))
        return spare + sum(sums[accepted_slot(bucket)] for bucket in range(self._buckets)) / tokens_per_draft

    def acceptance_error(self, bucket: int, sums: Sequence[float], tokens_per_draft: float) -> float:
        """The standard error of the bucket's acceptance rate; infinite where it can't be told."""
        spare, accepted = sums[spare_slot(bucket)], sums[accepted_slot(bucket)]
        drafts = accepted / tokens_per_draft + self.share(bucket) * spare
        error = self._solution.errors[bucket]
        if drafts <= 0 or math.isinf(error) or self._fit.count < _ENOUGH_WINDOWS:
            return math.inf
        return accepted / (tokens_per_draft * drafts) * error * spare / drafts
