"""When to poll next: as asked for, unless that would cost vLLM too much or vLLM is down."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_RECENT = 5  # scrapes of which the quickest tells the cost; the others waited for something else too


@dataclass(frozen=True, slots=True)
class PacingOptions:
    """Times in seconds; ``cpu_share`` is the share of one core that polling may take from vLLM."""

    interval: float = 1.0
    max_interval: float = 60.0
    backoff_max: float = 10.0
    cpu_share: float = 0.01


class Pacing:
    """Decides the pause between the starts of two polls."""

    def __init__(self, options: PacingOptions, random: Callable[[], float]) -> None:
        """``random`` gives numbers from 0 to 1."""
        self._options = options
        self._random = random
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self._failures = 0
        self.interval = options.interval  # the one in force while vLLM answers

    def succeeded(self, duration: float) -> float:
        """Seconds from this poll's start to the next one's, after a poll that took ``duration``."""
        self._failures = 0
        self._durations.append(duration)
        affordable = min(self._durations) / self._options.cpu_share
        # One that was asked to be longer than the maximum stays as asked.
        longest = max(self._options.max_interval, self._options.interval)
        self.interval = min(max(self._options.interval, affordable), longest)
        return self.interval

    def failed(self) -> float:
        """The same after a poll that failed: doubling, with jitter, so that many sidecars don't come as one."""
        self._failures += 1
        doubled = self.interval * 2.0 ** min(self._failures - 1, 16)
        ceiling = max(self._options.backoff_max, self.interval)
        return min(doubled, ceiling) * (0.5 + 0.5 * self._random())
