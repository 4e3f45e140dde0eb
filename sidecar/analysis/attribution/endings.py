"""How the requests of the last minutes ended, as far as attribution goes: what to say where there is no split."""

from collections import Counter as Tally
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.requests.record import Outcome

_STRETCHES: Final = 60  # of the window


class Ending(StrEnum):
    """What became of a request that has ended; all but the first two could not be attributed."""

    EXACT = "exact"
    INFERRED = "inferred"
    WITHOUT_USAGE = "without_usage"  # a whole stream that did not say how many tokens it was
    UNFINISHED = "unfinished"  # it failed, or was aborted
    UNKNOWN = "unknown"  # vLLM's counters don't tell, or its model is not on vLLM's page


def ending(request: AttributedRequest) -> Ending:
    """The one that holds for ``request``."""
    if request.attribution is not Attribution.NONE:
        return Ending.EXACT if request.attribution is Attribution.EXACT else Ending.INFERRED
    if request.outcome is not Outcome.COMPLETED:
        return Ending.UNFINISHED
    return Ending.WITHOUT_USAGE if request.without_usage else Ending.UNKNOWN


class SlidingEndings:
    """Counts of the last ``seconds``, to a sixtieth of them; bounded whatever the traffic."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stretches: deque[tuple[float, Tally[Ending]]] = deque()  # each with its beginning

    def add(self, request: AttributedRequest, at: float) -> None:
        """Adds a request that was settled at ``at``."""
        if not self._stretches or at - self._stretches[-1][0] >= self._seconds / _STRETCHES:
            self._stretches.append((at, Tally()))
            self._forget(at)
        self._stretches[-1][1][ending(request)] += 1

    def read(self, now: float) -> Mapping[Ending, int]:
        """The counts of the window that ends now; each kind is there."""
        self._forget(now)
        return {kind: sum(counts[kind] for _, counts in self._stretches) for kind in Ending}

    def _forget(self, now: float) -> None:
        while self._stretches and self._stretches[0][0] < now - self._seconds:
            self._stretches.popleft()
