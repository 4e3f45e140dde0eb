"""Days of traffic in which nothing changes, or one thing does: what verdicts are calibrated with.

Requests differ (``SCATTER`` is the standard deviation of their acceptance), come in sessions of
similar ones of one client, and their mean may wander. Nothing here is the product's.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, TypeVar

POLL: Final = 30.0
"""Seconds between two polls."""
WINDOW: Final = 300.0
"""Seconds; numbers of requests are by so many."""
SCATTER: Final = 0.15
_SESSION: Final = 5  # requests
_SIMILAR: Final = 0.7  # correlation of two requests of a session
_PAUSE: Final = 20.0  # mean seconds between two requests of a session
_DAY: Final = 86_400.0
_WEEKEND: Final = (5, 6)  # days of seven
_WANDERS_FOR: Final = 3600.0  # time constant
_K: Final = 3
_DRAFTS: Final = 30.0  # median of a request
_UNEVEN: Final = 0.6  # of the logarithm of its drafts

_Shared = TypeVar("_Shared")


class Ended(NamedTuple):
    """A finished request."""

    drafts: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Traffic:
    """One temperature's requests; ``rate`` is their mean acceptance until ``falls_at`` seconds.

    From then on it is ``falls_to``. ``requests`` are the mean number in five minutes. ``wander`` is
    the standard deviation of a mean that wanders. It is higher by ``swing`` at noon, as much lower
    at midnight, and lower by ``weekend`` on two of seven days.
    """

    rate: float
    requests: float = 150.0
    has_sessions: bool = False
    wander: float = 0.0
    falls_to: float | None = None
    falls_at: float = math.inf
    swing: float = 0.0
    weekend: float = 0.0

    def polls(self, seed: int, seconds: float) -> Iterator[Sequence[Ended]]:
        """What has finished by each poll."""
        random = Random(f"traffic {seed}")
        count = int(seconds / POLL)
        arrived: list[list[float]] = [[] for _ in range(count)]
        requests = arrivals(
            random, seconds, self.requests, lambda _: None, has_sessions=self.has_sessions
        )
        for at, _, own in requests:
            arrived[int(at / POLL)].append(own)

        drift = random.gauss(0, 1)
        kept = math.exp(-POLL / _WANDERS_FOR)
        for poll in range(count):
            drift = kept * drift + math.sqrt(1 - kept * kept) * random.gauss(0, 1)
            is_fallen = self.falls_to is not None and poll * POLL >= self.falls_at
            mean = self.falls_to if is_fallen and self.falls_to is not None else self.rate
            mean += self.wander * drift + self._by_the_clock(poll * POLL)
            yield [ended(random, mean + own) for own in arrived[poll]]

    def _by_the_clock(self, at: float) -> float:
        day = at / _DAY
        weekend = self.weekend if int(day) % 7 in _WEEKEND else 0.0
        return -self.swing * math.cos(2 * math.pi * day) - weekend


def arrivals(
    random: Random,
    seconds: float,
    requests: float,
    of_session: Callable[[Random], _Shared],
    *,
    has_sessions: bool,
) -> Iterator[tuple[float, _Shared, float]]:
    """Each request's time, what its session shares, and how far its acceptance is from the mean.

    ``requests`` are the mean number in ``WINDOW``. Without sessions, each is one by itself.
    """
    size = _SESSION if has_sessions else 1
    mean = WINDOW * size / requests
    alike = SCATTER * math.sqrt(_SIMILAR) if has_sessions else 0.0
    own = math.sqrt(SCATTER**2 - alike**2)
    at = random.expovariate(1 / mean)
    while at < seconds:
        off = random.gauss(0, alike) if alike else 0.0
        shared = of_session(random)
        when = at
        for _ in range(size):
            if when < seconds:
                yield when, shared, off + random.gauss(0, own)
            when += random.expovariate(1 / _PAUSE)
        at += random.expovariate(1 / mean)


def ended(random: Random, likely: float) -> Ended:
    """A request whose draft tokens are accepted with about this probability."""
    drafts = max(int(_DRAFTS * math.exp(random.gauss(0, _UNEVEN))), 2)
    drafted = _K * drafts
    likely = min(max(likely, 0.02), 0.98)
    accepted = round(random.gauss(drafted * likely, math.sqrt(drafted * likely * (1 - likely))))
    return Ended(drafts, drafted, min(max(accepted, 0), drafted))
