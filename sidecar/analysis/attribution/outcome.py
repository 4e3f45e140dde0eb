"""Attribution outcomes: why the requests of the last minutes do or do not have numbers."""

from collections import Counter as Tally
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.analysis.sliding import SlidingParts
from sidecar.requests.record import Outcome

_PARTS: Final = 60  # the window's resolution; bounds its memory


class AttributionOutcome(StrEnum):
    """How the attribution of a finished request turned out; all but the first two have no numbers."""

    EXACT = "exact"
    INFERRED = "inferred"
    WITHOUT_USAGE = "without_usage"  # a complete stream without a token count
    UNFINISHED = "unfinished"  # failed or aborted
    UNKNOWN = "unknown"  # vLLM's counters do not determine it, or its model is not on vLLM's page


def attribution_outcome(request: AttributedRequest) -> AttributionOutcome:
    """The attribution outcome of ``request``."""
    if request.attribution is Attribution.EXACT:
        return AttributionOutcome.EXACT
    if request.attribution is Attribution.INFERRED:
        return AttributionOutcome.INFERRED
    if request.outcome is not Outcome.COMPLETED:
        return AttributionOutcome.UNFINISHED
    return AttributionOutcome.WITHOUT_USAGE if request.without_usage else AttributionOutcome.UNKNOWN


class SlidingOutcomes:
    """Counts over the last ``seconds``, to a sixtieth of them; memory is bounded whatever the traffic."""

    def __init__(self, seconds: float) -> None:
        self._counts: SlidingParts[Tally[AttributionOutcome]] = SlidingParts(seconds, seconds / _PARTS, Tally)

    def add(self, request: AttributedRequest, at: float) -> None:
        """Adds a request attributed at ``at``."""
        self._counts.current(at)[attribution_outcome(request)] += 1

    def read(self, now: float) -> Mapping[AttributionOutcome, int]:
        """The counts of the window that ends now; every outcome is present."""
        parts = self._counts.read(now)
        return {kind: sum(counts[kind] for counts in parts) for kind in AttributionOutcome}
