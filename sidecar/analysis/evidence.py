"""What a judgement is based on: the speculation of a model, a temperature or an engine, recently and over an hour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sidecar.analysis.acceptance import NO_DRAFTS, Acceptance
from sidecar.analysis.draft_length import StepCosts

if TYPE_CHECKING:
    from sidecar.requests.messages import Speculation

_EXACT_SAMPLERS: Final = frozenset({None, "standard", "block", "strict", "probabilistic"})  # they keep the distribution
_ADAPTIVE: Final = (
    "Verification is adaptive: vLLM's counters include draft tokens that were never verified, so the acceptance rate "
    "is not meaningful, and only a measured speedup decides."
)
_SYNTHETIC: Final = "The acceptance rate is synthetic (rejection_sample_method): it is configured, not measured."
_LOSSY: Final = (
    "rejection_sample_method {} also accepts tokens that the model itself would not have sampled: part of the "
    "acceptance rate comes at the cost of quality."
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its standard error, in the value's unit."""

    value: float
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a judgement is based on: the speculation of a model, a temperature or an engine.

    ``window`` is over the sliding window, ``hour`` over the last hour, or as much of it as is known. ``speedup`` is
    plain time per token / actual; None without a reference. ``speculation`` is how the engine drafts; None without the
    plug-in.
    """

    window: Acceptance = NO_DRAFTS
    hour: Acceptance = NO_DRAFTS
    speedup: Estimate | None = None
    costs: StepCosts | None = None
    costs_by_load: Mapping[int, StepCosts] = field(default_factory=dict)
    speculation: "Speculation | None" = None

    @property
    def is_adaptive(self) -> bool:
        """Whether vLLM's acceptance counters include draft tokens that were never verified."""
        return self.speculation is not None and self.speculation.adaptive_verification

    @property
    def has_schedule(self) -> bool:
        """Whether the number of draft tokens follows a schedule by batch size."""
        return self.speculation is not None and self.speculation.per_batch_size

    def caveats(self) -> tuple[str, ...]:
        """Sentences on why the acceptance rate misleads."""
        sampler = self.speculation.rejection_sample_method if self.speculation is not None else None
        sentences = [_ADAPTIVE] if self.is_adaptive else []
        if sampler == "synthetic":
            sentences.append(_SYNTHETIC)
        elif sampler not in _EXACT_SAMPLERS:
            sentences.append(_LOSSY.format(sampler))
        return tuple(sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvidence:
    """What is known about one model: over all its engines, by engine, and by temperature if the plug-in is connected.

    ``temperatures`` is empty while the split is withheld.
    """

    model_name: str
    whole: Evidence
    temperatures: Mapping[str, Evidence] = field(default_factory=dict)
    engines: Mapping[str, Evidence] = field(default_factory=dict)
