"""A request with its share of the engine's speculation."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.requests.record import Outcome, RequestRecord


class Attribution(StrEnum):
    """Where a request's draft and accepted tokens come from."""

    EXACT = "exact"  # vLLM's own numbers, in the response
    INFERRED = "inferred"  # estimated from vLLM's counters and the request's times
    NONE = "none"  # unknown


class AttributionOutcome(StrEnum):
    """How the attribution of a finished request turned out; all but the first two have no numbers."""

    EXACT = "exact"
    INFERRED = "inferred"
    WITHOUT_USAGE = "without_usage"  # a complete stream without a token count
    UNFINISHED = "unfinished"  # failed or aborted
    UNKNOWN = "unknown"  # vLLM's counters do not determine it, or its model is not on vLLM's page


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributedRequest:
    """One finished request with its share of the engine's speculation.

    ``drafts``, ``draft_tokens`` and ``accepted_tokens`` are 0 if ``attribution`` is none; inferred ones are
    estimates, so not whole. ``acceptance`` (accepted / drafted, 0 to 1) and ``acceptance_length`` (tokens per
    verification step, its own included) are None without drafts, and if the request is too short for its own rate:
    its tokens still count in sums. ``histogram[j]`` is the number of steps that accepted j tokens, if exact.
    Times are seconds, None if unknown: ``ttft`` to the first token, ``tpot`` for each output token after it,
    ``duration`` in all. ``error`` is the standard error of ``accepted_tokens / draft_tokens``, times
    ``draft_tokens``, without what all requests of a bucket have in common. ``without_usage``: a stream without a
    token count. ``decode_tokens`` are those after the first of each choice; None if unknown.
    """

    id: str
    model: str | None
    temperature: str
    attribution: Attribution
    outcome: Outcome
    end: float
    drafts: float
    draft_tokens: float
    accepted_tokens: float
    acceptance: float | None
    acceptance_length: float | None
    histogram: tuple[int, ...]
    ttft: float | None
    tpot: float | None
    duration: float
    error: float = 0.0
    without_usage: bool = False
    decode_tokens: int | None = None


_NOTHING: Final = (0.0, 0.0, 0.0)


def attributed(
    record: RequestRecord,
    temperature: str,
    attribution: Attribution,
    work: tuple[float, float, float] = _NOTHING,
    *,
    reliable: bool = True,
    error: float = 0.0,
) -> AttributedRequest:
    """Builds the result; ``work`` is drafts, draft tokens, accepted tokens; ``reliable``: it has its own rate."""
    drafts, draft_tokens, accepted = work
    has_rate = reliable and drafts > 0 and draft_tokens > 0
    exact = record.acceptance if attribution is Attribution.EXACT else None
    tokens = record.completion_tokens
    ttft = None if record.first_token is None else max(record.first_token - record.start, 0.0)
    return AttributedRequest(
        id=record.id,
        model=record.model,
        temperature=temperature,
        attribution=attribution,
        outcome=record.outcome,
        end=record.end,
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted,
        acceptance=min(accepted / draft_tokens, 1.0) if has_rate else None,
        acceptance_length=1 + accepted / drafts if has_rate else None,
        histogram=exact.histogram if exact else (),
        ttft=ttft,
        tpot=_tpot(record),
        duration=max(record.end - record.start, 0.0),
        error=error,
        decode_tokens=None if tokens is None else max(tokens - record.choices, 0),
        # A stream without a first token could not be read.
        without_usage=record.stream and record.first_token is not None and record.completion_tokens is None,
    )


def _tpot(record: RequestRecord) -> float | None:
    tokens, first = record.completion_tokens, record.first_token
    if first is None or tokens is None or record.choices != 1 or tokens < 2 or record.end < first:
        return None
    return (record.end - first) / (tokens - 1)


def attribution_outcome(request: AttributedRequest) -> AttributionOutcome:
    """The attribution outcome of ``request``."""
    if request.attribution is Attribution.EXACT:
        return AttributionOutcome.EXACT
    if request.attribution is Attribution.INFERRED:
        return AttributionOutcome.INFERRED
    if request.outcome is not Outcome.COMPLETED:
        return AttributionOutcome.UNFINISHED
    return AttributionOutcome.WITHOUT_USAGE if request.without_usage else AttributionOutcome.UNKNOWN
