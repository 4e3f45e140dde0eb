"""What the rules of ``alerts/`` make of one pod's acceptance rate: a copy of them in Python.

Prometheus takes minutes for a day of a pod, and a calibration needs a thousand days. That both say
the same is a test (``tests/benchmarks/test_rules_model.py``). The pod is alone and without a split
by temperature, and drafts in one manner. It is scraped and all rules are evaluated once a minute;
Prometheus evaluates those that page twice, so it is half a minute earlier at most, and what is
usual every other minute.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

_DAY: Final = 1440  # minutes, as all of these
_WEEK: Final = 7 * _DAY
_HELD: Final = 3  # what was last known
_RATE: Final = 5
_MEAN: Final = 480
_KNOWN: Final = 2880
_ASSUMED: Final = 240
_ALARMED: Final = 25
_NEEDED: Final = 3
_LATCHED: Final = 20
_KEPT: Final = 15
_PENDING: Final = 30
_ASSUMED_VARIANCE: Final = 0.04**2
_MOST_OFF: Final = 3.0  # spreads
_SPREADS: Final = 4.5
_LEAST_FALL: Final = 0.05
_SURE_FALL: Final = 0.2
_AS_LOW: Final = 0.05
_NET_NEGATIVE: Final = 0.5
_REGRESSION: Final = 0.05


class Scraped(NamedTuple):
    """A sidecar's metrics, None where they are absent, and vLLM's counters."""

    rate: float | None  # specdec_model_acceptance_ratio
    is_low: bool | None  # specdec_model_acceptance_low
    loses: bool  # whether the model's verdict is net_negative, by its acceptance
    drafted: int
    accepted: int


class Fired(NamedTuple):
    """Which alerts fire: AcceptanceLow, critical, and AcceptanceRegressed."""

    page: bool
    regressed: bool


@dataclass(slots=True)
class _Usual:
    """The past of a rate over ten minutes."""

    minutes: int
    mean: float
    variance: float = _ASSUMED_VARIANCE

    def take(self, rate: float) -> None:
        self.minutes = min(self.minutes + 1, _KNOWN)
        spread = math.sqrt(self.variance)
        off = min(max((rate - self.mean) / spread, -_MOST_OFF), _MOST_OFF)
        self.mean += off * spread / min(self.minutes, _MEAN)
        self.variance *= 1 + (off**2 - 1) / (_ASSUMED + self.minutes)


class Rules:
    """Evaluates the rules minute by minute; ``fall``, ``spread`` and ``past`` are recorded."""

    def __init__(self) -> None:
        self.fall: float | None = None
        self.spread: float | None = None
        self.has_dropped = False
        self.past: float | None = None  # of the same hour, by vLLM's counters
        self._minute = -1
        self._ratio: tuple[int, float] = -_HELD - 1, 0.0  # when, and what
        self._low: tuple[int, bool] = -_HELD - 1, False
        self._judged: list[float | None] = []  # by minute, as all that follows
        self._totals: list[tuple[int, int]] = []  # drafted and accepted
        self._rates: list[tuple[int, int]] = []  # in five minutes
        self._recent: deque[float] = deque(maxlen=6)
        self._usual: _Usual | None = None
        self._lowest: list[float | None] = []  # of the same hour yesterday
        self._yesterday: list[float | None] = []
        self._alarming: deque[bool] = deque(maxlen=_ALARMED + 1)
        self._held_at = -_KEPT - 1
        self._fired_at = -_LATCHED - 1
        self._pending: int | None = None

    def step(self, scraped: Scraped) -> Fired:
        """The alerts a minute later."""
        self._minute += 1
        now = self._minute
        if scraped.rate is not None:
            self._ratio = now, scraped.rate
        if scraped.is_low is not None:
            self._low = now, scraped.is_low
        judged = self._ratio[1] if now - self._ratio[0] <= _HELD else None
        is_low = judged is not None and self._low[1] and now - self._low[0] <= _HELD
        self._judged.append(judged)
        self._totals.append((scraped.drafted, scraped.accepted))
        before = self._totals[max(now - _RATE, 0)]
        self._rates.append((scraped.drafted - before[0], scraped.accepted - before[1]))

        self._drop(judged, is_low=is_low)
        self._alarming.append(is_low and scraped.loses and self.has_dropped)
        self._look_back()
        page = self._page(is_low=is_low and scraped.loses)
        return Fired(page, self._has_regressed(judged))

    def _drop(self, judged: float | None, *, is_low: bool) -> None:
        self.has_dropped = False
        self.fall = self.spread = None
        if judged is None or self._rates[-1][0] <= 0:
            return  # no rate, or nothing tells how it drafts

        self._recent.append(judged)
        rate = sum(self._recent) / len(self._recent)
        usual = self._usual
        if usual is None:
            self._usual = _Usual(1, rate)
            return
        if self._is_asked_for(judged, is_low=is_low):
            self.fall = usual.mean - rate
            self.spread = math.sqrt(usual.variance)
            least = min(max(_SPREADS * self.spread, _LEAST_FALL), _SURE_FALL)
            was = _lower(self._lowest)
            was_as_low = was is not None and judged > was - _AS_LOW
            self.has_dropped = self.fall > least and not was_as_low
        usual.take(rate)

    def _is_asked_for(self, judged: float, *, is_low: bool) -> bool:
        """Whether an alert could need to know how far the rate fell."""
        has_regressed = self.past is not None and self.past - judged > _REGRESSION
        return judged < _NET_NEGATIVE or is_low or has_regressed

    def _look_back(self) -> None:
        """Records yesterday's hour; a week ago is what was recorded six days ago."""
        last = self._minute - _DAY + 30
        first = max(last - 60, 0)
        end = max(last + 1, 0)
        judged = [one for one in self._judged[first:end] if one is not None]
        self._lowest.append(min(judged, default=None))
        hour = self._rates[max(first, 1) : end]
        drafted = sum(one[0] for one in hour)
        is_known = len(hour) >= 30 and drafted > 0
        self._yesterday.append(sum(one[1] for one in hour) / drafted if is_known else None)
        self.past = _lower(self._yesterday)

    def _page(self, *, is_low: bool) -> bool:
        now = self._minute
        holds = self._alarming[-1] and sum(self._alarming) >= _NEEDED
        if holds or (is_low and now - self._fired_at <= _LATCHED):
            self._held_at = now
        elif now - self._held_at > _KEPT:
            return False
        self._fired_at = now
        return True

    def _has_regressed(self, judged: float | None) -> bool:
        spread = math.sqrt(_ASSUMED_VARIANCE) if self.spread is None else self.spread
        least = max(_REGRESSION, _SPREADS * spread)
        if judged is None or self.past is None or self.past - judged <= least:
            self._pending = None
            return False
        if self._pending is None:
            self._pending = self._minute
        return self._minute - self._pending >= _PENDING


def _lower(by_minute: list[float | None]) -> float | None:
    """Of yesterday and a week ago, as last recorded."""
    week = len(by_minute) - 1 - _WEEK + _DAY
    found = by_minute[-1:] + (by_minute[week : week + 1] if week >= 0 else [])
    return min((one for one in found if one is not None), default=None)
