"""Whether speculation pays: plain time per token / actual (docs/speedup.md).

This is computed for an engine and for each temperature. A request at temperature t gets L_t tokens
from a step of S seconds; without speculation it would get one in S0(b). Tokens and seconds are
summed over the sliding window and then divided, never averaged.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import hypot, inf
from typing import Final

from sidecar.analysis.speed.plain import (
    PlainStep,
    added_up,
    are_prompts_alike,
    beside,
    by_load,
    covers,
    scatter,
)
from sidecar.analysis.speed.steps import (
    LOAD_EDGES,
    LOAD_LABELS,
    NO_DECODING,
    StepCosts,
    Steps,
    load_label,
    sum_steps,
)
from sidecar.engine.window import GrowthWindow, Row, subtract
from sidecar.settings.baselines import PlainStepTimes

_FEWEST: Final = 5  # minimum parts of the window with data for an estimate


class Withheld(StrEnum):
    """Why there is no speedup."""

    NO_STEPS = "no_steps"  # vLLM does not export the step times, or several API servers count steps
    ITL_PER_TOKEN = "itl_per_token"  # noqa: S105 - not a password; ITL does not measure steps
    NO_REFERENCE = "no_reference"  # the time of a plain step is unknown
    OTHER_MODEL = "other_model"  # the baseline is of other models
    LOAD = "load"  # the baseline does not cover the number of running requests
    PROMPTS = "prompts"  # the baseline was measured with other prompts
    TOO_LITTLE = "too_little"  # too few tokens so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Plain time per token / actual: ``ratio`` ± ``error``, its standard error.

    Times are mean seconds per token.
    """

    ratio: float
    error: float
    plain_seconds: float
    actual_seconds: float
    tokens: float


class SlidingTimes:
    """Plain and actual seconds of the same tokens over a sliding window.

    The error comes from how the window's parts differ.
    """

    def __init__(self, seconds: float) -> None:
        # Tokens, actual and plain seconds, then the plain seconds' deviations.
        self._totals: Row = (0.0,) * 3
        self._window = GrowthWindow(seconds, subtract)
        self.mark(-inf)

    def add(self, *, tokens: float, plain: PlainStep, actual: float) -> None:
        """Adds ``tokens`` that took ``actual`` seconds in total.

        Each of them would take a step of ``plain`` seconds.
        """
        each = (plain.seconds, *plain.deviations)
        self._totals = added_up(
            [(1.0, self._totals), (1.0, (tokens, actual)), (tokens, (0.0, 0.0, *each))]
        )

    def mark(self, at: float) -> None:
        """Timestamps everything added so far with ``at``, a poll's time."""
        self._window.append(at, self._totals)

    def read(self) -> Speedup | None:
        """The window that ends now; None if it has too little data."""
        tokens, actual, plain, *deviations = self._window.growth or self._totals
        if tokens <= 0 or actual <= 0:
            return None

        ratio = plain / actual
        readings = [row for _, row in self._window.readings()]
        ahead = [row[2] - ratio * row[1] for row in readings]
        off = [
            b - a
            for (a, b), (before, after) in zip(pairwise(ahead), pairwise(readings), strict=True)
            if after[0] > before[0]
        ]
        if len(off) < _FEWEST:
            return None

        # S0's own errors are common to all tokens
        error = hypot(scatter(off), *deviations) / actual
        return Speedup(
            ratio=ratio,
            error=error,
            plain_seconds=plain / tokens,
            actual_seconds=actual / tokens,
            tokens=tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """One engine, or all engines of a model together, over the sliding window.

    If ``speedup`` is None, ``withheld`` says why. ``break_even_length`` is S / S0, the tokens per
    step at which speculating is as fast as plain decoding; ``break_even_acceptance`` is the
    acceptance rate that gives this length, more than 1 if none does; both are None without
    ``speedup``.
    """

    steps: Steps | None = None
    speedup: Speedup | None = None
    withheld: Withheld | None = None
    break_even_length: float | None = None
    break_even_acceptance: float | None = None

    @property
    def costs(self) -> StepCosts | None:
        """Step times over the window.

        None if the plain step time is unknown or nothing was drafted.
        """
        if self.steps is None or not self.break_even_length or not self.steps.drafted:
            return None
        actual = self.steps.step_seconds
        return StepCosts(
            actual=actual, plain=actual / self.break_even_length, drafted=self.steps.drafted
        )


_COVERED: Final = 0.8  # share of the tokens whose plain time must be known


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was decoded while ``running`` requests ran (a label: 1, 2, 3-4, …).

    It counts since the start, a model's since vLLM's start. ``plain_seconds`` is S0, the time of a
    step without speculation; None if unknown, as for one engine. It is, like the mean times to
    first token and the tokens per second of one engine, of the mean load that there was; without
    any, it is of the middle of the label's loads.
    """

    running: str
    seconds: float = 0.0  # between a request's steps, summed over requests
    steps: float = 0.0  # counted once for each request that decoded in them
    tokens: float = 0.0  # from these steps
    plain_seconds: float | None = None
    drafted: float = 0.0  # tokens per draft
    first_token_seconds: float | None = None
    tokens_per_second: float | None = None
    plain_first_token_seconds: float | None = None
    plain_tokens_per_second: float | None = None

    @property
    def actual_seconds(self) -> float | None:
        """Mean seconds per token; None if nothing was decoded."""
        return self.seconds / self.tokens if self.tokens else None

    @property
    def highest(self) -> int | None:
        """The highest number of running requests; None for the last load, which has none."""
        place = LOAD_LABELS.index(self.running)
        return LOAD_EDGES[place] if place < len(LOAD_EDGES) else None


class LoadTotals:
    """What was decoded at each load since the start."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(LOAD_LABELS, NO_DECODING)

    def add(self, steps: Steps) -> None:
        """Adds a period at its mean load."""
        label = load_label(steps.running)
        self._totals[label] = sum_steps(self._totals[label], steps)

    def report(self, curve: PlainStepTimes | None = None) -> tuple[LoadReport, ...]:
        """Every load, with what ``curve`` says of plain decoding there."""
        middles = {} if curve is None else by_load(curve)
        return tuple(
            _load_report(label, total, middles.get(label), curve)
            for label, total in self._totals.items()
        )


def _load_report(
    label: str, total: Steps, middle: float | None, curve: PlainStepTimes | None
) -> LoadReport:
    if not total.decode_steps:
        return LoadReport(label, plain_seconds=middle)
    plain, *plain_rates = beside(curve, total.running)
    timed = min(total.first_tokens, total.first_token_seconds) > 0
    first = total.first_token_seconds / total.first_tokens if timed else None
    decoded = (total.seconds, total.decode_steps, total.tokens, plain, total.drafted)
    return LoadReport(label, *decoded, first, total.tokens_per_second, *plain_rates)


class EngineSpeedWindow:
    """The steps of an engine or a model over a sliding window, with their plain times."""

    def __init__(self, seconds: float) -> None:
        self._total = NO_DECODING
        self._steps = GrowthWindow(seconds, subtract)
        self._times = SlidingTimes(seconds)
        self.mark(-inf)

    def add(self, steps: Steps, plain: PlainStep | None) -> None:
        """Adds what was decoded since the last poll, with its plain time per step if known."""
        self._total = sum_steps(self._total, steps)
        if plain is not None:
            self._times.add(tokens=steps.tokens, plain=plain, actual=steps.seconds)

    def mark(self, at: float) -> None:
        """Timestamps everything added so far with ``at``, a poll's time."""
        self._steps.append(at, self._total)
        self._times.mark(at)

    def read(self, curve: PlainStepTimes | None, missing: Withheld) -> EngineSpeed | None:
        """The window that ends at the last poll; None without steps.

        ``missing`` says why there is no curve.
        """
        grown = self._steps.growth or ()
        # also if a total is so large that, as a double, it no longer grows
        if not grown or min(grown[:4]) <= 0:
            return None

        steps = Steps(*grown)
        if curve is None:
            return EngineSpeed(steps=steps, withheld=missing)

        speedup = self._times.read()
        if speedup is None or speedup.tokens < _COVERED * steps.tokens:
            withheld = Withheld.TOO_LITTLE if covers(curve, steps.running) else Withheld.LOAD
            return EngineSpeed(steps=steps, withheld=withheld)
        if not are_prompts_alike(curve, steps):
            return EngineSpeed(steps=steps, withheld=Withheld.PROMPTS)

        length = steps.tokens_per_step / speedup.ratio
        drafted = steps.draft_tokens / steps.decode_steps
        return EngineSpeed(
            steps=steps,
            speedup=speedup,
            break_even_length=length,
            break_even_acceptance=max(length - 1, 0.0) / drafted if drafted else None,
        )
