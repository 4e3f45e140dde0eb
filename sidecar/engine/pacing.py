"""When to poll next: at the configured interval, unless that costs vLLM too much."""

from collections import deque

from sidecar.settings.groups import Scrape

_RECENT = 5  # pages; the fastest shows the cost, the others also include waiting


class Pacing:
    """Decides the time between the starts of two polls; ``interval`` is the current one."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self.interval = scrape.scrape_interval

    def arrived(self, duration: float) -> None:
        """Records that a page, usable or not, took ``duration`` seconds."""
        self._durations.append(duration)
        # A sidecar that starts while vLLM is busy must not slow down because its first poll had to wait.
        cost = min(self._durations) if len(self._durations) == _RECENT else 0.0
        affordable = cost / self._scrape.scrape_cpu_share
        # A configured interval above the maximum is kept.
        longest = max(self._scrape.scrape_max_interval, self._scrape.scrape_interval)
        self.interval = min(max(self._scrape.scrape_interval, affordable), longest)
