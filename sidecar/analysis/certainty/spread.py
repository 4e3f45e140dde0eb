"""How much requests differ in their acceptance rates, and sessions of them still more."""

import math
from dataclasses import dataclass
from operator import add
from typing import Final

from sidecar.analysis.certainty.sums import Sums, squares_off

BLOCK: Final = 300.0
"""Seconds of a block; successive blocks are compared."""
_ALL_FORGOTTEN: Final = 1e-6  # requests; what is left of older ones would underflow
# What is assumed until it is known: requests differ by 0.2, as twenty drafts of three tokens at
# rates that differ by 0.15 do, and sessions of five alike multiply the variance of a mean.
_ASSUMED_VARIANCE: Final = 0.04
_ASSUMED_FACTOR: Final = 3.5
_REQUESTS_ASSUMED: Final = 10.0  # the weight of the assumptions
_PAIRS_ASSUMED: Final = 12.0
_LEAST_FACTOR: Final = 0.25  # where the variance itself is only assumed
_MOST_SURPRISING: Final = 25.0  # a pair of blocks counts at most so much: a rate may have changed
_FEWEST: Final = 5.0  # requests of a block to be compared
_FORGOTTEN: Final = 86_400.0  # seconds after which a pair of blocks counts 1/e
_REQUESTS_FORGOTTEN: Final = 14_400.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance of the acceptance rate of ``n`` requests is ``variance · factor / n``.

    ``variance`` is of requests that know nothing of each other, ``factor`` is more than 1 where
    they come in sessions.
    """

    variance: float = _ASSUMED_VARIANCE
    factor: float = 1.0

    def error(self, requests: float) -> float:
        """The standard error of the rate of so many."""
        return math.sqrt(self.variance * self.factor / requests)

    def variance_of(self, sums: Sums) -> float:
        """That of the rate of these requests: as they differ, at least as all of the traffic does.

        A few that happen to be alike are no more certain than others.
        """
        usual = self.variance / sums.requests
        own = sums.variance if sums.requests > 1 else 0.0
        return self.factor * max(own, usual)


class SpreadWatch:
    """Learns the spread of one kind of traffic; what is old is forgotten, so memory is constant.

    The factor is that of successive blocks: the mean squared difference of their rates over what
    independent requests would have.
    """

    def __init__(self) -> None:
        # as in ``Sums``, of less weight the older they are
        self._sums: tuple[float, ...] = Sums()

        self._last_rate: float | None = None
        self._last_share = 0.0  # 1 / requests of that block
        self._pairs = 0.0
        self._surprise = 0.0  # sum of squared differences, each over its expected value

    def finished(self, sums: Sums) -> None:
        """Takes in finished requests with drafts."""
        self._sums = tuple(map(add, self._sums, sums))

    def block(self, requests: float, rate: float | None) -> None:
        """Takes in the rate of a block that has ended; None if it drafted nothing."""
        self._forget()
        if rate is None or requests < _FEWEST:
            self._last_rate = None
            return

        share = 1 / requests
        if self._last_rate is not None:
            expected = self._variance * (share + self._last_share)
            surprise = (rate - self._last_rate) ** 2 / expected
            self._surprise += min(surprise, _MOST_SURPRISING)
            self._pairs += 1
        self._last_rate = rate
        self._last_share = share

    def _forget(self) -> None:
        kept = math.exp(-BLOCK / _FORGOTTEN)
        self._pairs *= kept
        self._surprise *= kept

        kept = math.exp(-BLOCK / _REQUESTS_FORGOTTEN)
        self._sums = tuple(kept * one for one in self._sums)

    @property
    def _variance(self) -> float:
        """That of the rate, times the number of requests."""
        requests, drafted, accepted, drafted_squared, accepted_squared, product = self._sums
        if requests < _ALL_FORGOTTEN:
            return _ASSUMED_VARIANCE

        off = squares_off(accepted / drafted, accepted_squared, product, drafted_squared)
        known = requests**2 * off / drafted**2
        assumed = _REQUESTS_ASSUMED * _ASSUMED_VARIANCE
        return (assumed + known) / (_REQUESTS_ASSUMED + requests)

    @property
    def spread(self) -> Spread:
        """As far as it is known; before, as it is assumed."""
        assumed = _PAIRS_ASSUMED * _ASSUMED_FACTOR
        factor = (assumed + self._surprise) / (_PAIRS_ASSUMED + self._pairs)
        requests, *_ = self._sums
        least = 1.0 if requests > _REQUESTS_ASSUMED else _LEAST_FACTOR
        return Spread(self._variance, max(factor, least))
