"""When to poll next: at the configured interval, unless that costs vLLM too much or vLLM is down."""

from collections import deque
from collections.abc import Callable

from sidecar.settings.groups import Scrape

_RECENT = 5  # scrapes; the fastest shows the cost, the others also include waiting


class Pacing:
    """Decides the time between the starts of two polls."""

    def __init__(self, scrape: Scrape, random: Callable[[], float]) -> None:
        """``random`` returns numbers from 0 to 1."""
        self._scrape = scrape
        self._random = random
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self._failures = 0
        self.interval = scrape.scrape_interval  # in force while vLLM responds

    def succeeded(self, duration: float) -> float:
        """Seconds from this poll's start to the next one's, after a poll that took ``duration``."""
        self._failures = 0
        self._durations.append(duration)
        # A sidecar that starts while vLLM is busy must not stand still for as long as its first poll had to wait.
        cost = min(self._durations) if len(self._durations) == _RECENT else 0.0
        affordable = cost / self._scrape.scrape_cpu_share
        # A configured interval above the maximum is kept.
        longest = max(self._scrape.scrape_max_interval, self._scrape.scrape_interval)
        self.interval = min(max(self._scrape.scrape_interval, affordable), longest)
        return self.interval

    def failed(self, *, unreachable: bool = False) -> float:
        """The same after a poll that failed: doubling, with jitter, so that sidecars do not retry in step.

        ``unreachable``: there was no connection. Such attempts cost vLLM nothing, so its return is noticed at once.
        """
        self._failures = 0 if unreachable else self._failures + 1
        doubled = self.interval * 2.0 ** min(max(self._failures - 1, 0), 16)
        ceiling = max(self._scrape.scrape_backoff_max, self.interval)
        return min(doubled, ceiling) * (0.5 + 0.5 * self._random())
