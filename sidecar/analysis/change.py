"""What a change of how vLLM speculates did: the requests of before beside those of now.

vLLM changes it only with a restart, and only a plug-in says it. Without this, the restart that a
finding asks for would take away what the finding is to be compared with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Final

from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.distributions import quantile
from sidecar.analysis.windows.recent import RELATIVE_BIN, Ordered
from sidecar.requests.messages import Speculation

_EVERY: Final = 60.0  # seconds between two moments
_KEPT: Final = 86_400.0  # seconds after a change for which it is told
_FEWEST: Final = 10  # requests for which an error is told


@dataclass(frozen=True, slots=True)
class Median:
    """The median of single requests' times, in seconds, and its 95 % interval.

    The interval holds for requests that are independent, whatever their distribution: the number
    of them below the true median is binomial, so it lies within √n / 2 of n / 2 in 68 %. It is
    wider by a bin of ``Recent`` at both ends.
    """

    seconds: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Finished requests of one temperature.

    ``acceptance`` is of those ``requests`` that have drafts and are no repetition loops, ``error``
    its standard error by requests; times are of all ``timed`` ones, with or without drafts. None
    where too few tell.
    """

    requests: int
    timed: int
    acceptance: float | None
    error: float | None
    ttft: Median | None
    tpot: Median | None


@dataclass(frozen=True, slots=True)
class Moment:
    """A model's requests over the sliding window that ended at ``at``, by temperature.

    ``running``: requests that decoded in a step, on average; None if unknown.
    """

    at: float
    speculation: Speculation
    running: float | None
    temperatures: Mapping[str, Sample]

    @property
    def requests(self) -> int:
        """All of them that tell an acceptance rate."""
        return sum(side.requests for side in self.temperatures.values())


@dataclass(frozen=True, slots=True)
class Change:
    """vLLM has speculated in another way ``since`` a poll than ``before``.

    ``now`` is the last moment with enough requests, under traffic from this window; None until
    there was one.
    """

    since: float
    before: Moment
    now: Moment | None


class ChangeWatch:
    """The last moment with enough requests, and the one before the last change."""

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self._window = window
        self._last: Moment | None = None
        self._before: Moment | None = None
        self._since = 0.0
        self._looked = -inf

    def begin_again(self, at: float) -> "ChangeWatch":
        """From ``at`` on, vLLM speculates in another way.

        Where there were too few requests since the change before it, both changes are one.
        """
        again = ChangeWatch(self._window)
        again._before = self._last or self._before
        again._since = at
        return again

    def is_due(self, at: float) -> bool:
        """Whether to look at the window again."""
        return self._last is None or not 0 <= at - self._looked < _EVERY

    def _is_old(self, at: float) -> bool:
        """Whether none of the last moment's requests is in the window any more."""
        return self._last is None or not 0 <= at - self._last.at < self._window

    def note(self, moment: Moment, min_requests: int) -> None:
        """Takes in a moment, unless it has fewer requests than that.

        While the traffic ends, the window empties: the fullest moment of its length stays.
        """
        self._looked = moment.at
        last = self._last
        is_fuller = last is None or moment.requests >= last.requests
        if moment.requests >= min_requests and (is_fuller or self._is_old(moment.at)):
            self._last = moment

    def report(self, at: float) -> Change | None:
        """The last change; None if there was none within a day, or if it was taken back."""
        before = self._before
        if before is None or not 0 <= at - self._since <= _KEPT:
            return None
        if self._last is not None and self._last.speculation == before.speculation:
            return None
        return Change(self._since, before, self._last)


def sample_of(sums: Sums, ttft: Ordered, tpot: Ordered) -> Sample:
    """One temperature's, by its requests' sums and their ordered times."""
    is_enough = sums.requests >= _FEWEST and sums.drafted > 0
    return Sample(
        requests=sums.requests,
        timed=len(ttft),
        acceptance=sums.rate if is_enough else None,
        error=sqrt(sums.variance) if is_enough else None,
        ttft=_median(ttft),
        tpot=_median(tpot),
    )


def _median(values: Ordered) -> Median | None:
    if len(values) < _FEWEST:
        return None

    margin = 1 / sqrt(len(values))  # two standard errors of the rank, as a share
    low, middle, high = (quantile(values, 0.5 + away) for away in (-margin, 0.0, margin))
    if low is None or middle is None or high is None:
        return None
    return Median(middle, low / RELATIVE_BIN, high * RELATIVE_BIN)
