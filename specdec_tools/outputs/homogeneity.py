"""Whether two samples of choices come from the same distribution, and what would be noticed.

A context is what a choice follows; the choices in one context are compared by a chi-square test,
and the sums over contexts by another.

Numerics move log-probabilities a little, by another number for each token of each context but the
same ones each time, so that no number of samples averages them away. They are taken as independent,
of one variance, and widen the chi-square of a context the more samples it has. A control says how
large that variance is.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from specdec_tools.commands.distributions import chi_square_quantile, chi_square_tail

FEWEST: Final = 5
"""Times that a choice is expected in each of the two samples to be a class of its own (Cochran)."""
POWER: Final = 0.8
"""The chance to notice a difference that is said to be noticeable."""
# A choice of this probability is what a difference is stated for.
_TYPICAL: Final = 0.3


@dataclass(frozen=True, slots=True)
class Context:
    """The choices of two samples in one context, with the chi-square between them.

    ``weight`` is n m / (n + m), for samples of n and m choices. ``spread`` and ``concentration``
    are the trace of what numerics of variance 1 add to the covariance of the chi-square's terms,
    and that of its square.
    """

    square: float
    freedom: int
    weight: float
    spread: float = 0.0
    concentration: float = 0.0

    def beyond(self, variance: float) -> "Homogeneity":
        """The chi-square beyond numerics of this variance, in nat squared.

        A quadratic form of normal variables is about a scaled chi-square of the same mean and
        variance (Satterthwaite, 1946); it is divided by that scale.
        """
        if not variance or not self.freedom:
            return Homogeneity(self.square, self.freedom, self.weight)

        moved = self.weight * variance
        mean = self.freedom + moved * self.spread
        half = self.freedom + 2 * moved * self.spread + moved**2 * self.concentration
        scale = half / mean
        return Homogeneity(self.square / scale, mean / scale, self.weight / scale)


@dataclass(frozen=True, slots=True)
class Homogeneity:
    """A chi-square with its degrees of freedom, which numerics may make a fraction.

    ``weight`` is the sum over contexts of n m / (n + m), for samples of n and m choices: the larger
    it is, the smaller a difference shows. A context in which all choose the same has weight, too,
    but no degree of freedom.
    """

    square: float = 0.0
    freedom: float = 0.0
    weight: float = 0.0

    @property
    def p(self) -> float:
        """The chance of such a chi-square or a larger one without a difference; 1 if unknown."""
        return chi_square_tail(self.square, self.freedom) if self.freedom else 1.0

    def noticeable(self, chance: float) -> float | None:
        """The difference that would have been noticed with a probability of ``POWER``.

        It is the change of the probability of a choice at 0.3 in every context. ``chance`` is that
        of a false alarm. None without any data.
        """
        if not self.weight:
            return None

        # A change d of a probability q adds weight d^2 / (q (1 - q)) to the chi-square. Where all
        # have chosen the same, it makes the first two classes.
        added = _noncentrality(max(self.freedom, 1), chance)
        return math.sqrt(added * _TYPICAL * (1 - _TYPICAL) / self.weight)


def total(contexts: Iterable[Context], variance: float = 0.0) -> Homogeneity:
    """The sum over independent contexts, beyond numerics of this variance."""
    square = 0.0
    freedom = 0.0
    weight = 0.0
    for context in contexts:
        beyond = context.beyond(variance)
        square += beyond.square
        freedom += beyond.freedom
        weight += beyond.weight
    return Homogeneity(square, freedom, weight)


def homogeneity(one: Counter[int], other: Counter[int]) -> Context | None:
    """The choices of two samples in one context.

    Choices expected less often than ``FEWEST`` in one of them are one class together. None where
    there is nothing to compare.
    """
    first = one.total()
    second = other.total()
    if not first or not second:
        return None

    weight = first * second / (first + second)
    both = one + other
    smaller = min(first, second) / (first + second)  # its share of what both have seen
    common = [choice for choice, times in both.items() if times * smaller >= FEWEST]
    classes = [(one[choice], other[choice]) for choice in common]

    rare_in_first = first - sum(one[choice] for choice in common)
    rare_in_second = second - sum(other[choice] for choice in common)
    if (rare_in_first + rare_in_second) * smaller >= FEWEST:
        classes.append((rare_in_first, rare_in_second))

    if len(classes) < 2:
        is_certain = len(both) == 1 and min(first, second) >= 2 * FEWEST
        return Context(0.0, 0, weight) if is_certain else None

    # The last factor makes up for the mean of such a chi-square, which is N / (N - 1) times its
    # degrees of freedom for N choices (E. S. Pearson, 1947): in many small contexts that adds up.
    outputs = first + second
    scale = math.sqrt(second / first)
    square = sum((a * scale - b / scale) ** 2 / (a + b) for a, b in classes)
    spread, concentration = _moved(classes, outputs)
    return Context(
        square * (outputs - 1) / outputs, len(classes) - 1, weight, spread, concentration
    )


def _moved(classes: Sequence[tuple[int, int]], outputs: int) -> tuple[float, float]:
    """The traces of M and its square, of M[j, k] = √(p q) ((j = k) - p - q + Σ p²).

    p and q are the probabilities of the classes j and k. Where the log-probability of each has
    moved by a normal variable of variance 1, M is the covariance of (new p - p) / √p.
    """
    shares = [(a + b) / outputs for a, b in classes]
    squares = sum(share**2 for share in shares)
    cubes = sum(share**3 for share in shares)
    return 1 - squares, squares - 2 * cubes + squares**2


def _noncentrality(freedom: float, chance: float) -> float:
    """What a difference must add to the chi-square to be noticed with a probability of ``POWER``.

    By Patnaik's approximation to the noncentral chi-square.
    """
    critical = chi_square_quantile(chance, freedom)
    low = 0.0
    high = 100.0 * (freedom + 100.0)
    for _ in range(100):
        middle = (low + high) / 2
        scale = (freedom + 2 * middle) / (freedom + middle)
        matched = (freedom + middle) ** 2 / (freedom + 2 * middle)
        if chi_square_tail(critical / scale, matched) < POWER:
            low = middle
        else:
            high = middle

    return high
