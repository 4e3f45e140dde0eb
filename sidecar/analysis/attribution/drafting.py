"""How many of a request's steps drafted, if not every step does (n-gram, suffix, a K that falls to 0 under load).

A step that drafts accepts at most K tokens, so at least accepted / K steps drafted. The others are a request's
*optional* steps; the share of them that drafted is assumed to be the same throughout a temperature bucket. Windows in
which the buckets' optional steps have different proportions determine those shares:

    drafts - accepted / K = sum over buckets (share * optional steps)

by least squares on the growth of vLLM's counters.
"""

import math
from collections.abc import Sequence
from typing import Final

from sidecar.analysis.attribution.exposure import Amount, accepted_tokens, optional_steps
from sidecar.analysis.attribution.least_squares import LeastSquares, Solution
from sidecar.analysis.attribution.windows import Window

_UNSEEN: Final = 0.1  # of a window's steps: less is the noise of spreading requests over windows
_ENOUGH_OBSERVATIONS: Final = 20  # with fewer, the noise is hardly known
# Seconds (1 s, less the polls' jitter). Neighbouring windows have correlated errors, since requests' steps are spread
# evenly: as separate observations, short windows would make errors look smaller than they are.
_OBSERVATION: Final = 0.9
_SPREAD: Final = 0.5  # standard deviation of buckets' shares relative to their mean: 0.43 (development recordings)
_LEAST_SHARE: Final = 0.01  # keeps the prior proper


class Drafting:
    """The share of optional steps that draft, by bucket; observations fade with ``memory`` seconds."""

    def __init__(self, buckets: int, memory: float) -> None:
        self._buckets = buckets
        self._memory = memory
        self._fit = LeastSquares(buckets + 1)  # the last unknown is the traffic that is not seen
        self._row = [0.0] * (buckets + 1)
        self._target = self._seconds = 0.0
        self._drafts = self._steps = 0.0  # sums of all targets and all rows, for the mean share
        self._solution: Solution | None = None

    def observe(self, window: Window, amounts: Sequence[float], draft_length: float) -> None:
        """Adds a closed window; windows shorter than an observation are joined."""
        growth = window.growth
        drafts = growth.drafts - amounts[Amount.EXACT_DRAFTS]
        self._target += drafts - (growth.accepted - amounts[Amount.EXACT_ACCEPTED]) / draft_length
        for bucket in range(self._buckets):
            self._row[bucket] += max(amounts[optional_steps(bucket)], 0.0)
        unseen = growth.emitted - amounts[Amount.EMITTED]
        self._row[-1] += unseen if unseen > _UNSEEN * growth.emitted else 0.0
        self._seconds += window.seconds
        if self._seconds < _OBSERVATION:
            return
        keep = math.exp(-self._seconds / self._memory)
        self._fit.fade(keep)
        self._drafts = self._drafts * keep + self._target
        self._steps = self._steps * keep + sum(self._row)
        if any(self._row):
            # Whether a step drafts is random, so the variance grows with the number of steps.
            row = {index: steps for index, steps in enumerate(self._row) if steps > 0}
            self._fit.add(row, self._target, 1 / max(sum(self._row), 1.0))
        self._row = [0.0] * (self._buckets + 1)
        self._target = self._seconds = 0.0

    def solve(self) -> None:
        """Fits the shares to all observations so far."""
        if self._steps <= 0 or self._fit.count < _ENOUGH_OBSERVATIONS:
            return
        mean = min(max(self._drafts / self._steps, _LEAST_SHARE), 1 - _LEAST_SHARE)
        # Whether a step drafts is random, so the noise is at least that large.
        self._solution = self._fit.solve(mean=mean, deviation=_SPREAD * mean, noise=mean * (1 - mean))

    def share(self, bucket: int) -> float:
        """The share of the bucket's optional steps that draft, 0 to 1."""
        return 0.0 if self._solution is None else min(max(self._solution.values[bucket], 0.0), 1.0)

    def drafts(self, sums: Sequence[float], draft_length: float) -> float:
        """Drafts of all inferred requests, as fitted."""
        return sum(
            self.share(bucket) * sums[optional_steps(bucket)] + sums[accepted_tokens(bucket)] / draft_length
            for bucket in range(self._buckets)
        )

    def acceptance_error(self, bucket: int, sums: Sequence[float], draft_length: float) -> float:
        """The standard error of the bucket's acceptance rate; infinite if the fit does not determine it."""
        optional, accepted = sums[optional_steps(bucket)], sums[accepted_tokens(bucket)]
        drafts = accepted / draft_length + self.share(bucket) * optional
        if drafts <= 0 or self._solution is None:
            return math.inf
        return accepted / (draft_length * drafts) * self._solution.errors[bucket] * optional / drafts
