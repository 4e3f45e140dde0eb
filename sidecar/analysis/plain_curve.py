"""S0(b): seconds per step of the same model without speculation, by the number of requests running."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import hypot, sqrt
from typing import Final

from sidecar.analysis.steps import LOAD_EDGES, LOAD_LABELS, Steps
from sidecar.settings.baselines import PlainStepTimes

_BEYOND: Final = 1.05  # factor by which the outer segments extend past the lowest and highest measured load
_ALIKE: Final = 1.5  # highest ratio of two prompt shares that count as equal
_FEW: Final = 0.2  # prompt tokens per generated token up to which prefill is negligible


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """S0 in seconds.

    ``deviations[j]`` is how far one standard deviation of the j-th independent error moves S0. The errors are common
    to all steps timed by one curve, so they add up as ``seconds`` does: see ``added_up``.
    """

    seconds: float
    deviations: tuple[float, ...]

    @property
    def error(self) -> float:
        """The standard error in seconds."""
        return hypot(*self.deviations)


def added_up(terms: Iterable[tuple[float, Sequence[float]]]) -> tuple[float, ...]:
    """The deviations of a sum of times, from each term's count and deviations; missing ones are 0."""
    scaled = ([count * one for one in deviations] for count, deviations in terms)
    return tuple(sum(column) for column in zip_longest(*scaled, fillvalue=0.0))


def scatter(off: Sequence[float]) -> float:
    """The standard error of a sum: ``off`` is how far each of its parts, at least two, is from what it should be.

    For parts a - R b, it is the standard error of the ratio R of the sums of a and b, times the sum of b (Cochran,
    Sampling Techniques, 2.11).
    """
    return sqrt(sum([one**2 for one in off]) * len(off) / (len(off) - 1))


def covers(times: PlainStepTimes, running: float) -> bool:
    """Whether the load is among those measured, with a tolerance of ``_BEYOND`` at both ends."""
    return times.running[0] / _BEYOND <= running <= times.running[-1] * _BEYOND


def plain_step(times: PlainStepTimes, running: float) -> PlainStep | None:
    """S0 at a load; None beyond the measured loads."""
    return line(times, running) if covers(times, running) else None


def line(times: PlainStepTimes, running: float) -> PlainStep:
    """S0 at any load: straight segments between the measured loads, the outer ones extended as far as needed."""
    shares = _shares(running, times.running)
    deviations = times.deviations or tuple((error,) for error in times.errors)
    return PlainStep(
        seconds=sum(share * times.seconds[knot] for knot, share in shares.items()),
        deviations=added_up((share, deviations[knot]) for knot, share in shares.items()),
    )


def by_load(times: PlainStepTimes) -> dict[str, float]:
    """S0 in the middle of each load in ``steps.LOAD_LABELS``, without those that were not measured."""
    lows = (1, *(edge + 1 for edge in LOAD_EDGES))
    middles = {label: (low + high) / 2 for label, low, high in zip(LOAD_LABELS, lows, LOAD_EDGES, strict=False)}
    found = {label: plain_step(times, middle) for label, middle in middles.items()}
    return {label: step.seconds for label, step in found.items() if step is not None}


def are_prompts_alike(times: PlainStepTimes, steps: Steps) -> bool:
    """Whether plain steps with the same prompts would include about as much prefill as those that were measured."""
    share = min(max(times.prompt_share, steps.least_prompt_share), steps.prompt_share)
    low, high = sorted((times.prompt_share, share))
    return high <= max(_ALIKE * low, _FEW)


def _shares(running: float, knots: Sequence[float]) -> dict[int, float]:
    """The weights of the knots in the curve's value at a load; their sum is 1."""
    if len(knots) == 1:
        return {0: 1.0}
    right = min(max(bisect_right(knots, running), 1), len(knots) - 1)
    share = (running - knots[right - 1]) / (knots[right] - knots[right - 1])
    return {right - 1: 1 - share, right: share}
