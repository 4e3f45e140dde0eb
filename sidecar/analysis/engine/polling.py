"""How polling vLLM goes: what fails and how often, and whether the last page is still good."""

from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError

_FRESH_INTERVALS: Final = 2  # number of intervals for which a poll's data are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeReport:
    """Polling vLLM. ``up``: the last poll succeeded and is at most two intervals old; ``interval`` is in force now."""

    up: bool
    last_scrape: float | None  # when the last good poll was; None before the first
    duration: float | None
    interval: float
    errors: Mapping[str, int]  # failed polls by ``ScrapeError.reason``, each starting at 0
    last_error: ScrapeError | None  # None while up
    malformed_lines: int
    vllm_restarts: int


class ScrapeState:
    """Takes in every poll, in order."""

    def __init__(self, interval: float) -> None:
        """``interval`` is the configured one, used until the first poll gives the one in force."""
        self._interval = interval
        self._errors: Tally[str] = Tally(dict.fromkeys(ScrapeError.reasons(), 0))
        self._last_error: ScrapeError | None = None
        self._duration: float | None = None
        self.last: float | None = None  # Unix seconds of the last good poll
        self._malformed_lines = 0

    @property
    def is_polled(self) -> bool:
        """Whether at least one poll has ended, successfully or not."""
        return self.last is not None or self._last_error is not None

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        """Takes in a good poll."""
        self._malformed_lines += page.malformed
        self.last, self._duration, self._interval = at, duration, interval
        self._last_error = None

    def failed(self, error: ScrapeError) -> None:
        """Takes in a failed poll."""
        self._errors[error.reason] += 1
        self._last_error = error

    def is_fresh(self, now: float) -> bool:
        """Whether the last poll succeeded and is recent."""
        if self.last is None or self._last_error is not None:
            return False
        return now - self.last <= _FRESH_INTERVALS * self._interval

    def report(self, now: float, restarts: int) -> ScrapeReport:
        """The state at ``now``; ``restarts`` is how often vLLM has restarted."""
        return ScrapeReport(
            up=self.is_fresh(now),
            last_scrape=self.last,
            duration=self._duration,
            interval=self._interval,
            errors=dict(self._errors),
            last_error=self._last_error,
            malformed_lines=self._malformed_lines,
            vllm_restarts=restarts,
        )
