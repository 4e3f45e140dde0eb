"""The 10th percentile of single requests' acceptance rates, over a window that stretches if there are few requests."""

from collections import deque
from typing import Final

from sidecar.analysis.quantile import quantile

_LONGEST: Final = 3600.0  # seconds to which the window stretches
_MOST: Final = 1000  # requests; enough for a 10th percentile


class AcceptanceTail:
    """The acceptance rates of one model's latest requests, at whatever temperature."""

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self._window = window
        self._latest: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def add(self, rate: float, at: float) -> None:
        """Adds a request's rate, 0 to 1, at ``at`` in Unix seconds."""
        self._latest.append((at, rate))

    def p10(self, now: float, requests: int) -> float | None:
        """Over the window that ends at ``now``, or over the latest ``requests`` of an hour if the window has fewer.

        None if the hour has fewer too.
        """
        rates = [rate for at, rate in self._latest if at >= now - self._window]
        if len(rates) < requests:
            rates = [rate for at, rate in self._latest if at >= now - _LONGEST][-requests:]
        return quantile(sorted(rates), 0.1) if len(rates) >= requests else None
