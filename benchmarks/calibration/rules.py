"""What the rules of ``alerts/`` make of one pod's acceptance rate: a copy of them in Python.

Prometheus takes minutes for a day of a pod, and a calibration needs a thousand days. That both say
the same is a test (``tests/benchmarks/test_rules_model.py``). The pod is alone and without a split
by temperature, drafts in one manner, and its sidecar is scraped every ``SCRAPE`` seconds.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

SCRAPE: Final = 30  # seconds; the rules that page are evaluated as often
_MINUTE: Final = 60 // SCRAPE
_DAY: Final = 1440 * _MINUTE
_WEEK: Final = 7 * _DAY
_HELD: Final = 3 * _MINUTE  # what was last known
_RATE: Final = 5 * _MINUTE
_MEAN: Final = 480.0  # minutes
_KNOWN: Final = 2880.0
_ASSUMED: Final = 240.0
_ASSUMED_VARIANCE: Final = 0.04**2
_SPREADS: Final = 4.0
_LEAST_FALL: Final = 0.05
_SURE_FALL: Final = 0.2
_AS_LOW: Final = 0.05
_ALARMED: Final = 25 * _MINUTE
_NEEDED: Final = 3
_LATCHED: Final = 20 * _MINUTE
_KEPT: Final = 15 * _MINUTE
_PENDING: Final = 30 * _MINUTE


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
class _Past:
    """Of the rate over ten minutes."""

    minutes: float
    mean: float
    variance: float = _ASSUMED_VARIANCE

    def take(self, rate: float) -> None:
        self.minutes = min(self.minutes + 1, _KNOWN)
        off = rate - self.mean
        self.variance += (off**2 - self.variance) / (_ASSUMED + self.minutes)
        self.mean += off / min(self.minutes, _MEAN)


class Rules:
    """Evaluates the rules at each scrape; ``fall``, ``spread`` and ``past`` are recorded series."""

    def __init__(self) -> None:
        self.fall: float | None = None
        self.spread: float | None = None
        self.has_dropped = False
        self.past: float | None = None  # of the same hour, by vLLM's counters
        self._number = -1
        self._totals: list[tuple[int, int]] = []
        self._judged: list[float | None] = []  # by scrape
        self._rates: list[tuple[int, int]] = []  # drafted and accepted in five minutes
        self._low: tuple[int, bool] = -_HELD - 1, False  # at which scrape, and what
        self._ratio: tuple[int, float] = -_HELD - 1, 0.0
        self._recent: deque[float] = deque(maxlen=6)  # by minute
        self._usual: _Past | None = None
        self._lowest: list[float | None] = []  # of the same hour yesterday, by two minutes
        self._yesterday: list[float | None] = []
        self._alarming: deque[bool] = deque(maxlen=_ALARMED + 1)
        self._fired = -_LATCHED - 1
        self._held_at = -_KEPT - 1
        self._pending: int | None = None

    def step(self, scraped: Scraped) -> Fired:
        """The alerts after the next scrape."""
        self._number += 1
        now = self._number
        self._totals.append((scraped.drafted, scraped.accepted))
        if scraped.rate is not None:
            self._ratio = now, scraped.rate
        if scraped.is_low is not None:
            self._low = now, scraped.is_low
        judged = self._ratio[1] if now - self._ratio[0] <= _HELD else None
        low = judged is not None and self._low[1] and now - self._low[0] <= _HELD
        self._judged.append(judged)
        self._rates.append(self._rate())

        if now % _MINUTE == 0:
            self._drops(judged)
        loses = low and scraped.loses
        self._alarming.append(loses and self.has_dropped)
        if now % (2 * _MINUTE) == 0:
            self._look_back()
        page = self._page(is_low=loses)
        if now % _MINUTE == 0:
            self._regress(judged)
        is_due = self._pending is not None and now - self._pending >= _PENDING
        return Fired(page, is_due)

    def _rate(self) -> tuple[int, int]:
        drafted, accepted = self._totals[-1]
        before = self._totals[max(self._number - _RATE, 0)]
        return drafted - before[0], accepted - before[1]

    def _drops(self, judged: float | None) -> None:
        self.has_dropped = False
        self.fall = self.spread = None
        if judged is None or self._rates[-1][0] <= 0:
            return  # no rate, or nothing tells how it drafts

        self._recent.append(judged)
        rate = sum(self._recent) / len(self._recent)
        if self._usual is None:
            self._usual = _Past(1.0, rate)
        else:
            self._usual.take(rate)
        self.fall = self._usual.mean - rate
        self.spread = math.sqrt(self._usual.variance)
        least = min(max(_SPREADS * self.spread, _LEAST_FALL), _SURE_FALL)
        was = _lower(self._lowest)
        was_as_low = was is not None and judged > was - _AS_LOW
        self.has_dropped = self.fall > least and not was_as_low

    def _look_back(self) -> None:
        """Records yesterday's hour; a week ago is what was recorded six days ago."""
        last = self._number - _DAY + 30 * _MINUTE
        first = max(last - 60 * _MINUTE, 0)
        end = max(last + 1, 0)
        judged = [one for one in self._judged[first:end] if one is not None]
        self._lowest.append(min(judged, default=None))
        hour = self._rates[max(first, 1) : end]
        drafted = sum(one[0] for one in hour)
        is_known = len(hour) >= 30 and drafted > 0
        self._yesterday.append(sum(one[1] for one in hour) / drafted if is_known else None)
        self.past = _lower(self._yesterday)

    def _page(self, *, is_low: bool) -> bool:
        now = self._number
        counted = [
            self._alarming[-1 - back] for back in range(now % _MINUTE, len(self._alarming), _MINUTE)
        ]
        holds = self._alarming[-1] and sum(counted) >= _NEEDED
        holds = holds or (is_low and now - self._fired <= _LATCHED)
        if holds:
            self._held_at = now
        elif now - self._held_at > _KEPT:
            return False
        self._fired = now
        return True

    def _regress(self, judged: float | None) -> None:
        spread = math.sqrt(_ASSUMED_VARIANCE) if self.spread is None else self.spread
        if judged is None or self.past is None:
            self._pending = None
            return
        if self.past - judged > max(_LEAST_FALL, _SPREADS * spread):
            self._pending = self._number if self._pending is None else self._pending
        else:
            self._pending = None


def _lower(by_two_minutes: list[float | None]) -> float | None:
    """Of yesterday and a week ago, as last recorded."""
    if not by_two_minutes:
        return None
    before = len(by_two_minutes) - 1 - (_WEEK - _DAY) // (2 * _MINUTE)
    found = [by_two_minutes[-1], by_two_minutes[before] if before >= 0 else None]
    return min((one for one in found if one is not None), default=None)
