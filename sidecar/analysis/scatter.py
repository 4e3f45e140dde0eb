"""Standard errors from how much stretches of a measurement differ: what neighbours have in common counts once."""

from collections.abc import Sequence
from math import sqrt


def scatter(off: Sequence[float]) -> float:
    """The standard error of a sum: ``off`` is how far each of its parts, two at least, is from what it should be.

    With parts a - R b it is that of the ratio R of the sums of a and b, times the sum of b (Cochran, Sampling
    Techniques, 2.11).
    """
    return sqrt(sum([one**2 for one in off]) * len(off) / (len(off) - 1))
