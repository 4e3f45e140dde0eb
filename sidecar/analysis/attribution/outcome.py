"""Attribution outcomes: why the requests of the last minutes do or do not have numbers."""

from enum import StrEnum

from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.requests.record import Outcome


class AttributionOutcome(StrEnum):
    """How the attribution of a finished request turned out; all but the first two have no numbers."""

    EXACT = "exact"
    INFERRED = "inferred"
    WITHOUT_USAGE = "without_usage"  # a complete stream that carries no token count
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
