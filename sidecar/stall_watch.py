"""How long the event loop was blocked: shows whether any input stalls the sidecar."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

_EVERY: Final = 0.05  # seconds between two checks; a stall is underestimated by at most this much
_SPANS: Final = 6  # of 10 s each, over which the longest stall is reported
_LOOKS: Final = round(10 / _EVERY)


class StallWatch:
    """Measures by how much the loop wakes it late; ``clock`` is in seconds and never runs backwards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._longest = deque([0.0], _SPANS)  # by span

    @property
    def longest(self) -> float:
        """The longest stall of the last minute, in seconds; underestimated by at most 0.05."""
        return max(self._longest)

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            for _ in range(_LOOKS):
                due = self._clock() + _EVERY
                await asyncio.sleep(_EVERY)
                self._longest[-1] = max(self._longest[-1], self._clock() - due)
            self._longest.append(0.0)
