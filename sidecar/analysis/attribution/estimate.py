"""One request's verification steps, drafts and accepted tokens, from its residence time and vLLM's counters over it."""

import math
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.attribution.engine_model import PREFILL_AFTER_QUEUE, EngineModel
from sidecar.analysis.attribution.exposure import Amount, accepted_tokens, optional_steps
from sidecar.analysis.attribution.truncation import truncated_tokens
from sidecar.analysis.attribution.windows import Windows
from sidecar.requests.observe.endpoint import RESPONSES
from sidecar.requests.record import Outcome, RequestAcceptance, RequestRecord

_FIRST_EVENT_LAG: Final = 0.7  # steps by which the first event is late: 0.3 to 1.1 (recordings)
_UNEVENNESS: Final = 0.1  # standard deviation of a partial window's steps, relative to all of them (recordings)
_ENOUGH_DRAFTS: Final = 20  # for a draft length measured over the request's own time
_MERGED: Final = 3.0  # standard errors
_MOST_AMBIGUITY: Final = 0.1  # of a request's duration
_MOST_ERROR: Final = 0.045  # in a request's own rate: half of such errors are within 0.03, the median of all 0.02
_MOST_BIAS: Final = 0.025  # in a request's part of its bucket's rate: the bar of 0.02 with half of the traffic exact
_FIRST_EVENT_ERROR: Final = 0.35  # standard error of that lag


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRequest:
    """A finished request, with the step clock over its residence in vLLM's running batch.

    ``residence_steps`` are from admission to end, ``decode_steps`` from the first token to the end; None if no
    window covers that time or vLLM restarted in it. ``clock_error`` is their standard error from the distance of the
    polls. ``draft_length``: draft tokens per draft meanwhile. ``waited``: it waited for admission. ``ambiguous``: it is
    unknown which of several requests was admitted first. ``credible``: it has no more tokens than vLLM generated
    meanwhile.
    """

    record: RequestRecord
    bucket: int
    draft_length: float = 1.0
    residence_steps: float | None = None
    decode_steps: float | None = None
    clock_error: float = 0.0
    waited: bool = False
    ambiguous: bool = False
    credible: bool = True

    @property
    def decoded_tokens(self) -> float | None:
        """Tokens after the first one of each choice; None if the token count is not known."""
        tokens = self.record.completion_tokens
        return None if tokens is None else float(max(tokens - self.record.choices, 0))

    @property
    def events(self) -> float | None:
        """A stream's events after the first one of each choice; None if no event was seen."""
        record = self.record
        return max(float(record.stream_events - record.choices), 0.0) if record.stream_events > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Verification steps.

    ``error`` is the standard error of the count, ``bias`` the one that all requests of an engine have in common.
    ``ambiguous``: good only for sums. ``from_arrival``: counted by the clock from the request's arrival on.
    """

    count: float
    error: float = 0.0
    bias: float = 0.0
    ambiguous: bool = False
    from_arrival: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A request's speculation.

    ``truncated``: the part of ``accepted`` past the request's end. ``error``: as in ``AttributedRequest``.
    ``informative``: the request is long enough to count in its bucket's acceptance rate; ``reliable``: long enough
    to have its own.
    """

    drafts: float
    accepted: float
    truncated: float
    error: float
    informative: bool = False
    reliable: bool = False


def first_token(record: RequestRecord) -> float | None:
    """When the first token came. A stream of ``/v1/responses`` shows only its first text, which may be steps later."""
    return None if record.path == RESPONSES else record.first_token


def observe(
    record: RequestRecord, bucket: int, windows: Windows, admission: tuple[float, float], draft_length: float
) -> ObservedRequest:
    """Reads the step clock; ``admission`` is its time and error, ``draft_length`` the usual one."""
    first, last = windows.at(record.start), windows.at(record.end)
    if first is None or last is None or record.end <= record.start or last.after.restarts != first.before.restarts:
        return ObservedRequest(record=record, bucket=bucket, draft_length=draft_length)
    admitted, uncertain = admission
    end = last.clock(record.end)

    def steps_since(moment: float) -> float:
        window = windows.at(min(max(moment, record.start), record.end)) or first
        return max(end - window.clock(moment), 0.0)

    token = first_token(record)
    after, before = last.after, first.before
    drafts = after.drafts - before.drafts
    enough = drafts >= _ENOUGH_DRAFTS
    return ObservedRequest(
        record=record,
        bucket=bucket,
        draft_length=max((after.draft_tokens - before.draft_tokens) / drafts, 1.0) if enough else draft_length,
        residence_steps=steps_since(admitted),
        decode_steps=steps_since(token) if token is not None and record.start <= token <= record.end else None,
        clock_error=math.hypot(1.0, _UNEVENNESS * first.steps, _UNEVENNESS * last.steps),
        waited=admitted > record.start,
        ambiguous=uncertain > _MOST_AMBIGUITY * (record.end - record.start),
        credible=(record.completion_tokens or 0) <= after.generated - before.generated + 0.5,
    )


def steps_of(request: ObservedRequest, model: EngineModel) -> Steps | None:
    """A request's verification steps; None if they cannot be determined."""
    record, tokens, events = request.record, request.decoded_tokens, request.events
    if tokens is None or not request.credible:
        return None
    least = tokens / (request.draft_length + 1)
    if events is not None and least - 1 <= events <= tokens + 1 and not merged(request, events):
        return Steps(count=min(events, tokens))
    if record.choices != 1 or request.residence_steps is None:
        return None
    if request.decode_steps is not None:
        count = min(request.decode_steps + _FIRST_EVENT_LAG, tokens)
        return Steps(count=count, error=request.clock_error, bias=_FIRST_EVENT_ERROR)
    prefill = PREFILL_AFTER_QUEUE if request.waited else model.prefill
    return Steps(
        count=min(max(request.residence_steps - prefill.steps - 1, 0.0), tokens),
        error=max(request.clock_error, prefill.deviation),
        bias=prefill.error,
        ambiguous=request.ambiguous,
        from_arrival=not request.waited,
    )


def merged(request: ObservedRequest, events: float) -> bool:
    """Whether a stream has fewer events than steps by the clock: vLLM merges events if its API server falls behind."""
    clock = request.decode_steps
    return clock is not None and clock + _FIRST_EVENT_LAG - events > _MERGED * request.clock_error


def estimate(request: ObservedRequest, steps: Steps, share: float, drafts_per_token: float) -> Estimate:
    """A request's speculation; ``share`` of the steps that need not have drafted did."""
    tokens, most = request.decoded_tokens or 0.0, request.draft_length
    delivered = max(tokens - steps.count, 0.0)
    drafts, truncated = _drafts(delivered, steps.count, share, most), 0.0
    if request.record.outcome is Outcome.COMPLETED and drafts > 0:
        truncated = request.record.choices * truncated_tokens(delivered / drafts, most, min(drafts / steps.count, 1.0))
    drafts = _drafts(delivered + truncated, steps.count, share, most)
    accepted = min(delivered + truncated, most * drafts)
    if drafts <= 0:
        return Estimate(drafts=0.0, accepted=0.0, truncated=0.0, error=0.0, informative=True)
    # One more step counted is one fewer accepted token, and drafts change with both.
    rate = accepted / (most * drafts)
    slope = 1 - rate + rate * share * (most + 1)
    error = steps.error * slope
    # The usual number of drafts, not the estimated one, which would select requests whose drafts are overestimated.
    expected = most * max(tokens * drafts_per_token, 1.0)
    return Estimate(
        drafts=drafts,
        accepted=accepted,
        truncated=accepted - delivered,
        error=error,
        informative=steps.bias * slope <= _MOST_BIAS * expected,
        reliable=math.hypot(error, truncated) <= _MOST_ERROR * expected,
    )


def _drafts(accepted: float, steps: float, share: float, most: float) -> float:
    needed = min(accepted / most, steps)
    return needed + share * (steps - needed)


def amounts_inferred(request: ObservedRequest, steps: Steps, found: Estimate) -> dict[int, float]:
    """What a request with inferred numbers accounts for (``Exposures``)."""
    record = request.record
    emitted = (record.completion_tokens or 0) - found.accepted
    amounts: dict[int, float] = {
        Amount.REQUESTS: float(record.choices),
        Amount.TOKENS: float(record.completion_tokens or 0),
        Amount.EMITTED: emitted,
        Amount.STEPS: steps.count,
        optional_steps(request.bucket): steps.count - min(found.accepted / request.draft_length, steps.count),
        accepted_tokens(request.bucket): found.accepted,
    }
    if steps.from_arrival and request.residence_steps is not None:
        amounts |= {
            Amount.CLOCKED: 1.0,
            Amount.CLOCKED_STEPS: request.residence_steps - found.truncated,
            Amount.CLOCKED_EMITTED: emitted,
        }
    return amounts


def amounts_exact(record: RequestRecord, known: RequestAcceptance) -> dict[int, float]:
    """What a request with vLLM's own numbers accounts for."""
    tokens = record.completion_tokens
    if tokens is None:
        tokens = known.drafts + known.accepted_tokens + 1
    return {
        Amount.REQUESTS: float(record.choices),
        Amount.TOKENS: float(tokens),
        Amount.EMITTED: float(tokens - known.accepted_tokens),
        Amount.EXACT_DRAFTS: float(known.drafts),
        Amount.EXACT_ACCEPTED: float(known.accepted_tokens),
    }
