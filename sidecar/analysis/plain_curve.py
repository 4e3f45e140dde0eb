"""S0(b): seconds per step of the same model without speculation, by the number of requests running."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Final

from sidecar.analysis.attribution.least_squares import LeastSquares
from sidecar.analysis.steps import LOAD_EDGES, Steps

_BEYOND: Final = 1.05  # how far past the lowest and highest load measured the outer lines are extended
_SUPPORT: Final = 6  # periods that a curve needs, and a knot within half an octave
_BLOCKS: Final = 20  # of time, to leave out in turn: neighbouring periods have their errors in common
_HALF_OCTAVE: Final = sqrt(2)


@dataclass(frozen=True, slots=True)
class PlainStep:
    """S0 at one load and its standard error, in seconds."""

    seconds: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCurve:
    """Straight lines between knots: with ``running[i]`` requests a step takes ``seconds[i]``, ± ``errors[i]``.

    ``running`` rises; a single knot is a curve for that load alone. ``prompt_share`` is the number of prompt tokens
    computed per generated token while the curve was measured.
    """

    running: tuple[float, ...]
    seconds: tuple[float, ...]
    errors: tuple[float, ...]
    prompt_share: float

    def at(self, running: float) -> PlainStep | None:
        """S0 at a load; None beyond the loads that were measured."""
        if not self.running[0] / _BEYOND <= running <= self.running[-1] * _BEYOND:
            return None
        shares = _shares(running, self.running)
        # The errors of two knots may be correlated: their sum is the upper bound.
        return PlainStep(
            sum(share * self.seconds[knot] for knot, share in shares.items()),
            sum(abs(share) * self.errors[knot] for knot, share in shares.items()),
        )


def fit(periods: Sequence[Steps]) -> PlainCurve | None:
    """The curve through short periods of plain decoding, in the order of time; None if they are too few.

    Weighted least squares of S on b. The weights are decode steps, so the curve reproduces the total time measured.
    Standard errors are the jackknife's over blocks of time.
    """
    if len(periods) < _SUPPORT:
        return None
    knots = _knots([one.running for one in periods])
    blocks = min(_BLOCKS, len(periods) // 2)
    edges = [round(index * len(periods) / blocks) for index in range(blocks + 1)]
    left_out = [_solve([*periods[:start], *periods[end:]], knots) for start, end in pairwise(edges)]
    generated = sum(one.tokens + one.first_tokens for one in periods)
    return PlainCurve(
        running=knots,
        seconds=_solve(periods, knots),
        errors=tuple(_jackknife(values) for values in zip(*left_out, strict=True)),
        prompt_share=sum(one.prompt_tokens for one in periods) / generated,
    )


def _knots(loads: Sequence[float]) -> tuple[float, ...]:
    """The ends of what was measured, and between them the powers of two that were."""
    low, high = min(loads), max(loads)
    if high < low * _HALF_OCTAVE:
        return (sum(loads) / len(loads),)
    inner = [
        float(edge)
        for edge in LOAD_EDGES
        if low * _HALF_OCTAVE < edge < high / _HALF_OCTAVE
        and sum(edge / _HALF_OCTAVE <= load < edge * _HALF_OCTAVE for load in loads) >= _SUPPORT
    ]
    return (low, *inner, high)


def _shares(running: float, knots: Sequence[float]) -> dict[int, float]:
    """The weights, with sum 1, of the knots in the curve's value at a load."""
    if len(knots) == 1:
        return {0: 1.0}
    right = min(max(bisect_right(knots, running), 1), len(knots) - 1)
    share = (running - knots[right - 1]) / (knots[right] - knots[right - 1])
    return {right - 1: 1 - share, right: share}


def _solve(periods: Sequence[Steps], knots: Sequence[float]) -> tuple[float, ...]:
    squares = LeastSquares(len(knots))
    for one in periods:
        squares.add(_shares(one.running, knots), one.step_seconds, one.decode_steps)
    return squares.solve().values


def _jackknife(values: Sequence[float]) -> float:
    """The standard error of an estimate, from its values without one block after another."""
    mean = sum(values) / len(values)
    return sqrt((len(values) - 1) / len(values) * sum((value - mean) ** 2 for value in values))
