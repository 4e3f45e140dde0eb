"""What attribution has learned about one engine, and the identities that check it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.attribution.exposure import Amount
from sidecar.analysis.attribution.windows import Growth


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Steps from admission up to, but not including, the one that emits the first token.

    ``steps`` is the mean, ``error`` its standard error, ``deviation`` the standard deviation of single requests
    (0: not measured), ``number`` how many were measured.
    """

    steps: float
    error: float
    deviation: float = 0.0
    number: int = 0


# The development recordings have means of 0.9 to 1.1: the step in progress at the arrival, and half a step each for the
# response's way back and the prefill's own length. After a queue 0.0 to 0.15: inside the engine a place is passed on
# before the client that freed it gets its response. With the shared clock -1.3, as truncated tokens are not emitted.
USUAL_PREFILL: Final = Prefill(steps=1.0, error=0.35)
PREFILL_AFTER_QUEUE: Final = Prefill(steps=0.1, error=0.2)
USUAL_PREFILL_SHARED: Final = Prefill(steps=-1.2, error=0.35)

_ENOUGH_REQUESTS: Final = 8  # fewer say little about an engine; convention
_ENOUGH_DRAFTS: Final = 100
_EVERY_STEP: Final = 0.97  # drafts per step: 1.00 to 1.08 with a draft model, at most 0.43 with n-gram (recordings)
_ALL_SEEN: Final = 0.97  # of the tokens; the rest is blurred by the windows' edges
_MOSTLY_SEEN: Final = 0.9  # with less, a queue's and the shared clock's numbers are off by up to 0.6
_PARTLY_SEEN: Final = 0.7  # with less, unseen traffic hides the difference being measured
_MOST_RESIDUAL: Final = 0.1  # whole recordings leave up to 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """How steps and drafts of an engine's requests are counted.

    ``every_step_drafts``: each step after the first one drafts. ``draft_length``: draft tokens per draft.
    ``drafts_per_token``: drafts per generated token. ``clock_is_shared``: there is no step count (``shared_steps``).
    ``queued``: requests wait for admission.
    """

    every_step_drafts: bool = True
    prefill: Prefill = USUAL_PREFILL
    draft_length: float = 1.0
    drafts_per_token: float = 0.5
    clock_is_shared: bool = False
    queued: bool = False


def enough(sums: Sequence[float], counted: Growth) -> bool:
    """Whether the closed windows hold enough to learn from."""
    return sums[Amount.REQUESTS] >= _ENOUGH_REQUESTS and counted.drafts >= _ENOUGH_DRAFTS


def seen_share(sums: Sequence[float], counted: Growth) -> float:
    """The share of the generated tokens that went to requests whose token count is known, 0 to 1."""
    share = sums[Amount.TOKENS] / counted.generated if counted.generated > 0 else 0.0
    return 1.0 if share > _ALL_SEEN else share


def every_step_drafts(sums: Sequence[float], counted: Growth) -> bool:
    """Whether there are as many drafts as steps after each request's first one.

    A request's first step drafts nothing and its last one emits about half a token less than its step.
    """
    share = seen_share(sums, counted)
    firsts = min(sums[Amount.REQUESTS] / share if share > 0 else 0.0, counted.emitted / 2)
    return counted.drafts > _EVERY_STEP * (counted.emitted - 0.5 * firsts)


def applies(model: EngineModel, share: float) -> bool:
    """Whether the model's numbers hold if only ``share`` of the generated tokens belongs to requests that are seen.

    A shared clock and a queue need all requests in flight. The fit of drafts tolerates some unseen ones.
    """
    if share > _MOSTLY_SEEN:
        return True
    alone = not model.clock_is_shared and not model.queued
    return alone and (model.every_step_drafts or share > _PARTLY_SEEN)


def coverage(counted: Growth, drafts: float) -> float | None:
    """Attributed ``drafts`` as a share of those counted, 0 to 1; None if none were counted."""
    return min(drafts / counted.drafts, 1.0) if counted.drafts > 0 else None


def residual(sums: Sequence[float], counted: Growth, drafts: float) -> float | None:
    """The relative difference of requests' sums from the counters' growth: the larger of drafts and accepted tokens.

    Both are compared with the share of the traffic that is seen. None without growth, if much of the traffic is not
    seen, or if some is not and nothing is inferred: unseen traffic may accept more or less.
    """
    seen = seen_share(sums, counted)
    if seen < _PARTLY_SEEN or (seen < 1 and not sums[Amount.STEPS]):
        return None
    expected, accepted = counted.drafts * seen, counted.accepted * seen
    if expected <= 0 or accepted <= 0:
        return None
    found = sums[Amount.TOKENS] - sums[Amount.EMITTED]
    return max(abs(drafts - expected) / expected, abs(found - accepted) / accepted)


def consistent(found: float | None) -> bool:
    """Whether a residual allows inferred numbers."""
    return found is None or found < _MOST_RESIDUAL
