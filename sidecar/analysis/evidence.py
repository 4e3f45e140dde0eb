"""What a judgement is based on: the speculation of a model, a temperature or an engine, recently and over an hour."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.analysis.acceptance import NO_DRAFTS, Acceptance
from sidecar.analysis.speed.steps import StepCosts
from sidecar.engine.methods import drafts_by_token, follows_a_schedule
from sidecar.requests.messages import Speculation


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its standard error, in the value's unit."""

    value: float
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a judgement is based on: the speculation of a model, a temperature or an engine.

    ``window`` is over the sliding window, ``hour`` over the last hour, or as much of it as is known. ``speedup`` is
    plain time per token / actual; None without a baseline. ``speculation`` is how the engine drafts; None without the
    plug-in. ``is_data_parallel``: vLLM has several engines for the model.
    """

    window: Acceptance = NO_DRAFTS
    hour: Acceptance = NO_DRAFTS
    speedup: Estimate | None = None
    costs: StepCosts | None = None
    costs_by_load: Mapping[int, StepCosts] = field(default_factory=dict)
    speculation: Speculation | None = None
    is_data_parallel: bool = False

    @property
    def is_adaptive(self) -> bool:
        """Whether vLLM's acceptance counters include draft tokens that were never verified."""
        return self.speculation is not None and self.speculation.adaptive_verification

    @property
    def has_schedule(self) -> bool:
        """Whether the number of draft tokens follows a schedule by batch size."""
        return self.speculation is not None and self.speculation.per_batch_size

    @property
    def is_ruled(self) -> bool:
        """Whether the rule of thumb on the acceptance rate applies, as it does if nothing is known of the method."""
        return self.speculation is None or is_ruled(self.speculation)

    @property
    def can_schedule(self) -> bool:
        """Whether vLLM is known to let the number of draft tokens follow the batch size."""
        known = self.speculation is not None and follows_a_schedule(self.speculation.method)
        return known and not self.is_data_parallel


def is_ruled(found: Speculation) -> bool:
    """Whether the rule of thumb on the acceptance rate applies to engines that speculate like this."""
    by_token = drafts_by_token(found.method, in_parallel=found.parallel_drafting)
    return by_token and not found.adaptive_verification


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvidence:
    """What is known about one model: over all its engines, by engine, and by temperature if the plug-in is connected.

    ``temperatures`` is empty while the split is withheld. ``acceptance_p10`` is of single requests;
    ``latency_gap_growth`` is P99 - P50 of the time per output token / the baseline's, where it is widest;
    ``kv_cache_peak`` is the fullest engine's; each is None if unknown. ``waiting`` requests wait for capacity.
    """

    model_name: str
    whole: Evidence
    temperatures: Mapping[str, Evidence] = field(default_factory=dict)
    engines: Mapping[str, Evidence] = field(default_factory=dict)
    acceptance_p10: float | None = None
    latency_gap_growth: float | None = None
    kv_cache_peak: float | None = None
    waiting: float = 0.0
