"""What attribution has learned about one engine."""

from dataclasses import dataclass
from typing import Final


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
