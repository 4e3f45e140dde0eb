"""What numerics alone do: a control compares the reference with itself at another number in flight.

Its outputs differ by nothing but the shapes in which the model runs. What the tested server is
called different for has to be more than that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specdec_tools.outputs.homogeneity import Context, total

STEADY: Final = 0.25
"""In nat, the most that numerics may move the gap between two tokens in 99 of 100 contexts.

Two steps of bfloat16 at logits from 16 to 32. A server that moves further has another fault, which
may be the tested one's, too.
"""
_ROUNDING: Final = 1e-3  # nat, of log-probabilities that are sums in 32 bits
# One standard error above the estimate: with the tested server's own chance that makes the error of
# the difference of the two, or a little more.
_UPPER: Final = 0.84
_CERTAIN: Final = 0.01  # the chance to call a steady reference one that is not
_LARGEST: Final = 25.0  # nat squared
_STEPS: Final = 24  # of a bisection, each of which halves the variance's logarithm
_SMALLEST: Final = 1e-6  # nat squared: 0.001 nat
# The gap of two tokens has twice the variance of each; 99 % of a normal variable are within this.
_P99_OF_GAP: Final = 2.576 * math.sqrt(2)


@dataclass(frozen=True, slots=True)
class Numerics:
    """How far the control's samples say that numerics move log-probabilities, in nat.

    ``at_most`` is the standard deviation that is allowed for, one standard error above the
    estimate; ``at_least`` what it surely is (99 %).
    """

    at_most: float
    at_least: float

    @property
    def variance(self) -> float:
        """What is allowed for, in nat squared."""
        return self.at_most**2

    @property
    def is_steady(self) -> bool:
        """Whether the reference may be taken for one that only numerics move."""
        return self.at_least * _P99_OF_GAP <= STEADY


NONE: Final = Numerics(0.0, 0.0)


def numerics_of(contexts: Sequence[Context]) -> Numerics:
    """From the contexts of the reference and its control.

    The bounds are the variances at which the chi-square beyond them is as likely as the bound says
    (the Q-profile method: Viechtbauer, 2007).
    """
    compared = [context for context in contexts if context.freedom]
    if not compared:
        return NONE
    return Numerics(
        at_most=math.sqrt(_variance_at(compared, _UPPER)),
        at_least=math.sqrt(_variance_at(compared, _CERTAIN)),
    )


def _variance_at(contexts: Sequence[Context], tail: float) -> float:
    """The least variance beyond which so large a chi-square has at least this chance."""
    if total(contexts).p >= tail:
        return 0.0

    low = math.log(_SMALLEST)
    high = math.log(_LARGEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if total(contexts, math.exp(middle)).p < tail:
            low = middle
        else:
            high = middle
    return math.exp(high)


@dataclass(frozen=True, slots=True)
class Movement:
    """By how much the gaps between the reference's two likeliest tokens moved in the control.

    ``p99`` is in nat, None without ``positions``; ``beyond`` of them moved by more than ``STEADY``.
    """

    positions: int
    beyond: int
    p99: float | None

    @property
    def is_steady(self) -> bool:
        """Whether the share of those beyond may be 1 % or less."""
        return binomial_tail(self.beyond, self.positions, 0.01) >= _CERTAIN


def movement_of(gaps: Sequence[tuple[float, float]]) -> Movement:
    """From the gaps, in nat, of both runs of the reference."""
    moved = sorted(abs(one - other) for one, other in gaps)
    beyond = sum(size > STEADY + _ROUNDING for size in moved)
    p99 = moved[math.ceil(0.99 * len(moved)) - 1] if moved else None
    return Movement(len(moved), beyond, p99)


def binomial_tail(events: int, of: int, chance: float) -> float:
    """The chance of so many events or more; ``chance`` is above 0 and below 1."""
    return min(1.0, sum(_binomial(number, of, chance) for number in range(events, of + 1)))


def _binomial(number: int, of: int, chance: float) -> float:
    ways = math.lgamma(of + 1) - math.lgamma(number + 1) - math.lgamma(of - number + 1)
    return math.exp(ways + number * math.log(chance) + (of - number) * math.log1p(-chance))
