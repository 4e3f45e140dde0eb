"""Whether speculation pays: plain time per token / actual, of an engine and of each temperature (docs/speedup.md).

A request at temperature t gets L_t tokens from a step of S seconds; without speculation it would get one in S0(b).
Tokens and seconds are summed over the sliding window and then divided, never averaged.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from math import hypot, sqrt
from typing import Final

from sidecar.analysis.draft_length import StepCosts
from sidecar.analysis.plain_curve import PlainStep
from sidecar.analysis.sliding import SlidingParts
from sidecar.analysis.steps import Steps

_FEWEST: Final = 5  # stretches with data that an estimate needs
_OFF: Final = 0.25  # relative standard error of a correction for other prompts


class Reference(StrEnum):
    """Where S0(b) comes from, best first."""

    BASELINE = "baseline"  # measured on the same model without speculation
    UNDRAFTED = "undrafted"  # this engine's own steps without drafts


class Withheld(StrEnum):
    """Why no speedup is claimed."""

    NO_STEPS = "no_steps"  # vLLM does not export the step times, or several API servers count steps
    ITL_PER_TOKEN = "itl_per_token"  # noqa: S105 - no password: ITL is no measure of steps
    NO_REFERENCE = "no_reference"  # the time of a plain step is unknown
    OTHER_MODEL = "other_model"  # the baseline is of other models
    LOAD = "load"  # the reference does not cover the number of running requests
    PROMPTS = "prompts"  # the reference was measured with other prompts
    TOO_LITTLE = "too_little"  # too few tokens so far


WITHHELD: Final = {
    Withheld.NO_STEPS: "vLLM exports no step times, or several API servers count the same steps",
    Withheld.ITL_PER_TOKEN: (
        "this vLLM's inter-token latency has one observation a token, so it does not time steps; "
        "the plug-in does, if vLLM loads it"
    ),
    Withheld.NO_REFERENCE: (
        "nothing says how long a step takes without speculation; measure it: "
        "specdec-sidecar baseline --url PLAIN --load 1,2,4,8,16 --out baseline.yaml"
    ),
    Withheld.OTHER_MODEL: "the baseline is of other models than this vLLM serves",
    Withheld.LOAD: "the baseline does not cover this many running requests; measure it at higher loads: --load",
    Withheld.PROMPTS: (
        "the baseline was measured with another ratio of prompt to generated tokens; "
        "measure it with prompts like the traffic's: --prompts, --max-tokens"
    ),
    Withheld.TOO_LITTLE: "too few tokens so far",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Plain time per token / actual, ``ratio`` ± ``error`` (standard error); times are mean seconds per token."""

    ratio: float
    error: float
    plain_seconds: float
    actual_seconds: float
    tokens: float


class SlidingTimes:
    """Plain and actual seconds of the same tokens over a sliding window.

    It is kept in stretches of time; how much they differ gives the standard error.
    """

    def __init__(self, seconds: float, stretch: float) -> None:
        self._stretches = SlidingParts(seconds, stretch, _Times)

    def add(self, at: float, *, tokens: float, plain: PlainStep, actual: float) -> None:
        """Adds ``tokens`` that took ``actual`` seconds in total, and would each take a step of ``plain`` seconds."""
        stretch = self._stretches.current(at)
        stretch.tokens += tokens
        stretch.plain += tokens * plain.seconds
        pairs = zip_longest(stretch.deviations, plain.deviations, fillvalue=0.0)
        stretch.deviations = tuple([so_far + tokens * one for so_far, one in pairs])
        stretch.others += tokens * plain.others
        stretch.actual += actual

    def read(self, now: float, prompt_excess: float) -> Speedup | None:
        """The window that ends now; None if it has too little data. ``prompt_excess``: see ``PlainCurve``."""
        stretches = self._stretches.read(now)
        count = len(stretches)
        tokens = sum([one.tokens for one in stretches])
        actual = sum([one.actual for one in stretches])
        if count < _FEWEST or tokens <= 0 or actual <= 0:
            return None
        excess = prompt_excess * sum([one.others for one in stretches])
        plain = sum([one.plain for one in stretches]) + excess
        error = hypot(*map(sum, zip_longest(*[one.deviations for one in stretches], fillvalue=0.0)))
        ratio = max(plain, 0.0) / actual
        # The variance of a ratio of sums (Cochran, Sampling Techniques, 2.11); S0's own errors are common to all.
        squares = sum([(one.plain + prompt_excess * one.others - ratio * one.actual) ** 2 for one in stretches])
        scatter = sqrt(squares * count / (count - 1)) / actual
        return Speedup(
            ratio=ratio,
            error=hypot(scatter, error / actual, _OFF * excess / actual),
            plain_seconds=plain / tokens,
            actual_seconds=actual / tokens,
            tokens=tokens,
        )


@dataclass(slots=True)
class _Times:
    tokens: float = 0.0
    plain: float = 0.0
    others: float = 0.0
    actual: float = 0.0
    deviations: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """One engine over the sliding window.

    If ``speedup`` is None, ``withheld`` says why. ``break_even_length`` is S / S0, the tokens per step at which
    speculating is as fast as plain decoding; ``break_even_acceptance`` is the acceptance rate that gives this length,
    more than 1 if none does; both are None with ``speedup``. ``prompt_excess`` as in ``PlainCurve``, for this window's
    prompts.
    """

    steps: Steps | None = None
    speedup: Speedup | None = None
    withheld: Withheld | None = None
    break_even_length: float | None = None
    break_even_acceptance: float | None = None
    prompt_excess: float | None = None

    @property
    def costs(self) -> StepCosts | None:
        """Step times over the window; None if the plain step time is unknown or nothing was drafted."""
        if self.steps is None or not self.break_even_length or not self.steps.draft_tokens:
            return None
        actual = self.steps.step_seconds
        drafted = self.steps.draft_tokens / self.steps.drafts
        return StepCosts(actual=actual, plain=actual / self.break_even_length, drafted=drafted)
