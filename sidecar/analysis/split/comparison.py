"""What a plug-in told of an engine beside what vLLM had counted of it at that moment.

Drafts are compared or, where nothing was drafted, generated tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Compared(StrEnum):
    """What both the plug-in and vLLM count of an engine."""

    DRAFTS = "drafts"
    DRAFT_TOKENS = "draft_tokens"
    ACCEPTED_TOKENS = "accepted_tokens"
    GENERATION_TOKENS = "generation_tokens"


_DRAFTED: Final = (Compared.DRAFTS, Compared.DRAFT_TOKENS, Compared.ACCEPTED_TOKENS)

Totals = Mapping[Compared, int]
"""What was counted since a start. A number that is not known is missing."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A ``total`` that was told, and what vLLM had counted then: from ``least`` to ``most``.

    The two are never from the same moment. ``least`` and ``most`` have the same numbers.
    """

    total: Totals
    least: Totals
    most: Totals

    def since(self, before: "Comparison") -> "Comparison":
        """The growth since an earlier moment, in the numbers that both have."""
        names = self.total.keys() & before.total.keys()
        return Comparison(
            total={name: self.total[name] - before.total[name] for name in names},
            least={name: self.least[name] - before.most[name] for name in names},
            most={name: self.most[name] - before.least[name] for name in names},
        )

    def less(self, counted: Totals) -> "Comparison":
        """The same total beside what vLLM has counted beyond ``counted``."""
        return Comparison(
            total=self.total,
            least={name: least - counted.get(name, 0) for name, least in self.least.items()},
            most={name: most - counted.get(name, 0) for name, most in self.most.items()},
        )

    @property
    def deciding(self) -> "Comparison":
        """The same in the numbers that decide: those of drafts, if anything was drafted."""
        has_drafted = any(self.total.get(name) or self.most.get(name) for name in _DRAFTED)
        both = self.total.keys() & self.least.keys()
        names = both.intersection(_DRAFTED if has_drafted else (Compared.GENERATION_TOKENS,))
        return Comparison(*(_only(names, one) for one in (self.total, self.least, self.most)))

    @property
    def counted(self) -> int:
        """Drafts, or tokens where nothing was drafted, that vLLM has counted at least."""
        own = self.deciding.least
        return own.get(Compared.DRAFTS, own.get(Compared.GENERATION_TOKENS, 0))

    def is_above(self, tolerance: float) -> bool:
        """Whether a deciding number is above what vLLM has by more than the ``tolerance``."""
        own = self.deciding
        return any(number > (1 + tolerance) * own.most[name] for name, number in own.total.items())

    def is_outside(self, tolerance: float) -> bool:
        """Whether a deciding number is outside what vLLM has by more than the ``tolerance``."""
        own = self.deciding
        return any(
            not (1 - tolerance) * own.least[name] <= number <= (1 + tolerance) * own.most[name]
            for name, number in own.total.items()
        )

    def is_near_middle(self, part: float) -> bool:
        """Whether each deciding number is within this ``part`` of the middle of vLLM's."""
        own = self.deciding
        middles = {name: (own.least[name] + own.most[name]) / 2 for name in own.total}
        return all(
            abs(number - middles[name]) <= part * middles[name]
            for name, number in own.total.items()
        )

    def is_exact(self, tolerance: float) -> bool:
        """Whether it agrees, and vLLM's count is known as well as the tolerance asks for."""
        own = self.deciding
        is_sharp = all(
            own.most[name] - own.least[name] <= tolerance * number
            for name, number in own.total.items()
        )
        return any(own.total.values()) and is_sharp and not self.is_outside(tolerance)

    @property
    def ratio(self) -> float | None:
        """The tokens that were told ÷ vLLM's, drafted or else generated; None if vLLM has none.

        It is 1 for a total from the least to the most.
        """
        own = self.deciding
        name = Compared.GENERATION_TOKENS
        if Compared.DRAFT_TOKENS in own.total:
            name = Compared.DRAFT_TOKENS
        if own.most.get(name, 0) <= 0:
            return None
        if own.least[name] <= own.total[name] <= own.most[name]:
            return 1.0
        return own.total[name] / own.most[name]

    @property
    def farthest(self) -> float | None:
        """The ratio of whichever number differs most, so that one near 1 hides no difference."""
        own = self.deciding
        ratios = [own.total[name] / most for name, most in own.most.items() if most > 0]
        return max(ratios, key=lambda ratio: abs(ratio - 1), default=None)


def sum_of(totals: Iterable[Totals]) -> Totals:
    """The sums of the numbers that all have."""
    known = list(totals)
    return {
        name: sum(one[name] for one in known)
        for name in Compared
        if known and all(name in one for one in known)
    }


def _only(names: Iterable[Compared], totals: Totals) -> Totals:
    return {name: totals[name] for name in names}
