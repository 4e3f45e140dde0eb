"""What a plug-in told of an engine, beside what vLLM had counted of it at a poll.

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
    """What vLLM had ``counted`` at a poll, and a plug-in by then: from ``least`` to ``most``.

    A report is never of a poll's moment, so one before it and one after it say what was told.
    ``least`` and ``most`` have the same numbers.
    """

    counted: Totals
    least: Totals
    most: Totals

    def since(self, before: "Comparison") -> "Comparison":
        """The growth since an earlier poll."""
        return Comparison(
            counted=_less(self.counted, before.counted),
            least=_less(self.least, before.most),
            most=_less(self.most, before.least),
        )

    def less(self, told: Totals) -> "Comparison":
        """The same beside what vLLM has counted beyond what others ``told``."""
        counted = {name: number - told.get(name, 0) for name, number in self.counted.items()}
        return Comparison(counted, self.least, self.most)

    def plus(self, told: Totals) -> "Comparison":
        """The same of all that was told, of which this is a part and ``told`` the rest."""
        return Comparison(
            counted=self.counted,
            least={name: number + told.get(name, 0) for name, number in self.least.items()},
            most={name: number + told.get(name, 0) for name, number in self.most.items()},
        )

    def beside(self, told: Totals) -> "Comparison":
        """What another one ``told`` beside what vLLM has counted and this one did not tell."""
        return Comparison(
            counted=told, least=_less(self.counted, self.most), most=_less(self.counted, self.least)
        )

    @property
    def deciding(self) -> "Comparison":
        """The same in the numbers that decide: those of drafts, if anything was drafted."""
        has_drafted = any(self.most.get(name) or self.counted.get(name) for name in _DRAFTED)
        both = self.most.keys() & self.counted.keys()
        names = both.intersection(_DRAFTED if has_drafted else (Compared.GENERATION_TOKENS,))
        return Comparison(*(_only(names, one) for one in (self.counted, self.least, self.most)))

    @property
    def traffic(self) -> int:
        """Drafts, or tokens where nothing was drafted, that vLLM has counted."""
        own = self.deciding.counted
        return own.get(Compared.DRAFTS, own.get(Compared.GENERATION_TOKENS, 0))

    @property
    def unknown(self) -> int:
        """How much of what was told may have been told after the poll."""
        own = self.deciding
        return sum(most - own.least[name] for name, most in own.most.items())

    def is_above(self, tolerance: float) -> bool:
        """Whether a deciding number is above vLLM's by more than the ``tolerance``."""
        own = self.deciding
        return any(own.least[name] > (1 + tolerance) * own.counted[name] for name in own.counted)

    def is_below(self, tolerance: float) -> bool:
        """Whether a deciding number is below vLLM's by more than the ``tolerance``."""
        own = self.deciding
        return any(own.most[name] < (1 - tolerance) * own.counted[name] for name in own.counted)

    def is_outside(self, tolerance: float) -> bool:
        """Whether a deciding number differs from vLLM's by more than the ``tolerance``."""
        return self.is_above(tolerance) or self.is_below(tolerance)

    def is_known_within(self, part: float) -> bool:
        """Whether all that was told is known but for this ``part`` of what vLLM has counted."""
        own = self.deciding
        return all(
            own.most[name] - own.least[name] <= part * number
            for name, number in own.counted.items()
        )

    @property
    def ratio(self) -> float | None:
        """The tokens that were told ÷ vLLM's, drafted or else generated; None if vLLM has none.

        It is 1 if vLLM's are from the least to the most.
        """
        own = self.deciding
        name = Compared.GENERATION_TOKENS
        if Compared.DRAFT_TOKENS in own.counted:
            name = Compared.DRAFT_TOKENS
        return own._ratio(name)  # noqa: SLF001 - its own

    @property
    def farthest(self) -> float | None:
        """The ratio of whichever number differs most, so that one near 1 hides no difference."""
        own = self.deciding
        ratios = [own._ratio(name) for name in own.counted]  # noqa: SLF001 - its own
        known = [ratio for ratio in ratios if ratio is not None]
        return max(known, key=lambda ratio: abs(ratio - 1), default=None)

    def _ratio(self, name: Compared) -> float | None:
        counted = self.counted.get(name, 0)
        if counted <= 0:
            return None
        return min(max(counted, self.least[name]), self.most[name]) / counted


def sum_of(totals: Iterable[Totals]) -> Totals:
    """The sums of the numbers that all have."""
    known = list(totals)
    return {
        name: sum(one[name] for one in known)
        for name in Compared
        if known and all(name in one for one in known)
    }


def _less(totals: Totals, before: Totals) -> Totals:
    return {name: totals[name] - before[name] for name in totals.keys() & before.keys()}


def _only(names: Iterable[Compared], totals: Totals) -> Totals:
    return {name: totals[name] for name in names}
