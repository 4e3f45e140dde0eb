"""How polling vLLM goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from sidecar.errors import ScrapeError

_FRESH_INTERVALS: Final = 2  # number of intervals for which a poll's data are shown
_FRESH: Final = 2.0  # seconds; a busy machine misses two intervals of 100 ms without any fault
_RECENT: Final = 60.0  # seconds after the last good poll for which its judgements hold


class Age(Enum):
    """How old the values of the last good poll are: what of them is shown.

    What lasts, such as counters, is shown at any age.
    """

    FRESH = auto()  # what is current, too
    RECENT = auto()  # judgements hold, and the alerts and the answer that read them
    OLD = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeReport:
    """How polling vLLM goes.

    ``up``: the last poll succeeded and is at most two intervals, or two seconds, old. ``interval``
    is in force now.
    """

    up: bool = False
    began: float | None = None  # when the first poll ended, good or not
    last_scrape: float | None = None  # when the last good poll was; None before the first
    duration: float | None = None
    interval: float  # the configured one until the first poll
    errors: Mapping[str, int] = field(
        default_factory=lambda: dict.fromkeys(ScrapeError.reasons(), 0)
    )
    last_error: ScrapeError | None = None  # None while up
    malformed_lines: int = 0
    vllm_restarts: int = 0

    def scraped(
        self, at: float, duration: float, interval: float, malformed: int
    ) -> "ScrapeReport":
        """After a good poll."""
        return replace(
            self,
            began=at if self.began is None else self.began,
            last_scrape=at,
            duration=duration,
            interval=interval,
            last_error=None,
            malformed_lines=self.malformed_lines + malformed,
        )

    def failed(self, at: float, error: ScrapeError) -> "ScrapeReport":
        """After a failed poll; ``errors`` counts them by ``ScrapeError.reason``."""
        return replace(
            self,
            began=at if self.began is None else self.began,
            errors={**self.errors, error.reason: self.errors[error.reason] + 1},
            last_error=error,
        )

    def at(self, now: float, restarts: int) -> "ScrapeReport":
        """At ``now``; ``restarts`` is how often vLLM has restarted."""
        return replace(self, up=self.age(now) is Age.FRESH, vllm_restarts=restarts)

    def age(self, now: float) -> Age:
        """That of the last good poll's values at ``now``: this is decided here alone."""
        if self.last_scrape is None:
            return Age.OLD

        seconds = now - self.last_scrape
        if self.last_error is None and seconds <= max(_FRESH_INTERVALS * self.interval, _FRESH):
            return Age.FRESH
        return Age.RECENT if 0 <= seconds <= _RECENT else Age.OLD
