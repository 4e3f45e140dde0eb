"""Whether speculation pays: plain time per token / actual, of an engine and of each temperature (docs/speedup.md).

A request at temperature t gets L_t tokens from a step of S seconds; without speculation it would get one in S0(b).
Tokens and seconds are summed over the sliding window and then divided, never averaged.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from math import hypot, sqrt
from typing import Final

from sidecar.analysis.draft_length import StepCosts
from sidecar.analysis.plain_curve import PlainCurve, PlainStep, added_up
from sidecar.analysis.sliding import SlidingParts
from sidecar.analysis.steps import Steps, joined

_FEWEST: Final = 5  # stretches with data that an estimate needs
_COVERED: Final = 0.8  # share of the tokens whose plain time must be known
_OFF: Final = 0.25  # relative standard error of a correction for other prompts
_CONFIDENCE: Final = 2.0  # standard errors by which the two methods may differ
_CLOSE: Final = 0.05  # difference of the ratios that is allowed in any case


class Reference(StrEnum):
    """Where S0(b) comes from, best first."""

    BASELINE = "baseline"  # measured on the same model without speculation
    UNDRAFTED = "undrafted"  # this engine's own steps without drafts


class Withheld(StrEnum):
    """Why no speedup is claimed."""

    NO_STEPS = "no_steps"  # vLLM does not export the step times, or several API servers count steps
    NO_REFERENCE = "no_reference"  # the time of a plain step is unknown
    OTHER_MODEL = "other_model"  # the baseline is of other models
    LOAD = "load"  # the reference does not cover the number of running requests
    PROMPTS = "prompts"  # the reference was measured with other prompts
    TOO_LITTLE = "too_little"  # too few tokens so far


WITHHELD: Final = {
    Withheld.NO_STEPS: "vLLM exports no step times, or several API servers count the same steps",
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
    """Plain time per token / actual, ``ratio`` ± ``error``; times are mean seconds per token of a request.

    ``scatter`` is the part of the standard error that comes from this window rather than from S0.
    """

    ratio: float
    error: float
    scatter: float
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
        stretch.deviations = added_up([(1.0, stretch.deviations), (tokens, plain.deviations)])
        stretch.others += tokens * plain.others
        stretch.actual += actual

    def read(self, now: float, prompt_excess: float) -> Speedup | None:
        """The window that ends now; None if it has too little data. ``prompt_excess``: see ``PlainCurve``."""
        stretches = self._stretches.read(now)
        count = len(stretches)
        tokens = sum(one.tokens for one in stretches)
        actual = sum(one.actual for one in stretches)
        if count < _FEWEST or tokens <= 0 or actual <= 0:
            return None
        excess = prompt_excess * sum(one.others for one in stretches)
        plain = sum(one.plain for one in stretches) + excess
        error = hypot(*added_up((1.0, one.deviations) for one in stretches))
        ratio = max(plain, 0.0) / actual
        # The variance of a ratio of sums (Cochran, Sampling Techniques, 2.11); S0's own errors are common to all.
        squares = sum((one.plain + prompt_excess * one.others - ratio * one.actual) ** 2 for one in stretches)
        scatter = sqrt(squares * count / (count - 1)) / actual
        return Speedup(
            ratio=ratio,
            error=hypot(scatter, error / actual, _OFF * excess / actual),
            scatter=scatter,
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


def reconciled(by_clock: Speedup | None, by_steps: Speedup | None) -> tuple[Speedup | None, bool]:
    """One estimate from two methods, and whether they contradict each other: then the error spans both.

    The clock is what the request source saw of its streams, and needs no attribution. Steps times S is what vLLM's own
    counters say about all attributed requests, and does not include what happens between vLLM and its clients.
    """
    if by_clock is None or by_steps is None:
        return by_clock or by_steps, False
    apart = abs(by_steps.ratio - by_clock.ratio)
    if apart <= max(_CONFIDENCE * hypot(by_clock.scatter, by_steps.scatter), _CLOSE):
        return by_clock, False
    return replace(by_clock, error=hypot(by_clock.error, apart / _CONFIDENCE)), True


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


class EngineSpeedWindow:
    """One engine's steps over a sliding window, beside their plain times; kept as ``SlidingTimes`` are."""

    def __init__(self, seconds: float, stretch: float) -> None:
        self._steps: SlidingParts[list[Steps]] = SlidingParts(seconds, stretch, list)
        self.times = SlidingTimes(seconds, stretch)

    def add(self, at: float, steps: Steps, plain: PlainStep | None) -> None:
        """Adds what was decoded between the last poll and ``at``, with its plain time per step if known."""
        stretch = self._steps.current(at)
        stretch[:] = [joined(stretch[0], steps) if stretch else steps]
        if plain is not None:
            self.times.add(at, tokens=steps.tokens, plain=plain, actual=steps.seconds)

    def read(self, now: float, curve: PlainCurve | None) -> EngineSpeed:
        """The window that ends now."""
        stretches = self._steps.read(now)
        if not stretches:
            return EngineSpeed(withheld=Withheld.NO_STEPS)
        steps = reduce(joined, (one for (one,) in stretches))
        if curve is None:
            return EngineSpeed(steps=steps, withheld=Withheld.NO_REFERENCE)
        excess = curve.prompt_excess(steps.prompt_share)
        speedup = self.times.read(now, excess or 0.0)
        if speedup is None or speedup.tokens < _COVERED * steps.tokens or not speedup.ratio:
            if not curve.covers(steps.running):
                return EngineSpeed(steps=steps, withheld=Withheld.LOAD)
            return EngineSpeed(steps=steps, withheld=Withheld.TOO_LITTLE, prompt_excess=excess)
        if excess is None:
            return EngineSpeed(steps=steps, withheld=Withheld.PROMPTS)
        length = steps.length / speedup.ratio
        drafted = steps.draft_tokens / steps.drafts if steps.drafts else 0.0
        return EngineSpeed(
            steps=steps,
            speedup=speedup,
            break_even_length=length,
            break_even_acceptance=max(length - 1, 0.0) / drafted if drafted else None,
            prompt_excess=excess,
        )
