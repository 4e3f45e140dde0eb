"""A cut of the plug-in beside what vLLM had counted at its moment.

Drafts are compared or, where vLLM drafts nothing, generated tokens.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

# Where vLLM may have counted up to so many times as much as it had at least, a total between the
# two says nothing.
_UNSURE: Final = 2.0
# A growth is proof by itself if vLLM has counted at least so many drafts or tokens in it.
_ENOUGH: Final = 300
# For a life that had been confirmed before, so many are enough if it is known to this fraction how
# many.
_ENOUGH_OF_KNOWN: Final = 100
_SURE_OF_KNOWN: Final = 0.1
# After so many polls in a row without a report or a new count, all that was counted has arrived.
_REST_POLLS: Final = 2


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
    """A cut's ``total``, and what vLLM had counted at its moment: from ``least`` to ``most``.

    The three have the same numbers.
    """

    total: Totals
    least: Totals
    most: Totals

    def since(self, before: "Comparison") -> "Comparison":
        """The growth since an earlier cut."""
        return Comparison(
            total=_subtract(self.total, before.total),
            least=_subtract(self.least, before.most),
            most=_subtract(self.most, before.least),
        )

    def is_below(self, tolerance: float) -> bool:
        """Whether any number is below the least, by more than the fraction ``tolerance``."""
        return any(self.total[name] < (1 - tolerance) * least for name, least in self.least.items())

    def is_above(self, tolerance: float) -> bool:
        """Whether any number is above the most, by more than the fraction ``tolerance``."""
        return any(self.total[name] > (1 + tolerance) * most for name, most in self.most.items())

    def is_outside(self, tolerance: float) -> bool:
        """Whether it is either."""
        return self.is_below(tolerance) or self.is_above(tolerance)

    def less(self, origin: Totals) -> "Comparison":
        """The cut beside what vLLM has counted beyond the ``origin``."""
        return Comparison(
            total=self.total,
            least={name: least - origin.get(name, 0) for name, least in self.least.items()},
            most={name: most - origin.get(name, 0) for name, most in self.most.items()},
        )

    def with_total_as_least(self) -> "Comparison":
        """The same of a cut that agrees, where vLLM had at least as much as the cut has.

        A report that is read late may have less than the least, and what it lacked by then would be
        missing in the growth since.
        """
        least = {name: min(number, self.total[name]) for name, number in self.least.items()}

        return replace(self, least=least)

    def plus(self, others: Totals) -> "Comparison":
        """The cut together with what ``others`` have counted for the same engine."""
        total = {name: number + others.get(name, 0) for name, number in self.total.items()}
        return replace(self, total=total)

    def is_telling(self, tolerance: float) -> bool:
        """Whether it says anything that it agrees.

        VLLM must have counted something, and of each number it must be known how much it is, or the
        cut must have as much as vLLM has by now.
        """
        counted = [name for name, most in self.most.items() if most > 0]
        return bool(counted) and all(
            self.most[name] <= _UNSURE * self.least[name]
            or self.total[name] >= (1 - tolerance) * self.most[name]
            for name in counted
        )

    @property
    def width(self) -> int:
        """How far all that vLLM may have counted at its moment is from what it had at least."""
        return sum(self.most.values()) - sum(self.least.values())

    @property
    def is_well_known(self) -> bool:
        """Whether vLLM has counted some, and it is about known how much."""
        return max(self.least.values()) >= _ENOUGH_OF_KNOWN and all(
            self.most[name] - least <= _SURE_OF_KNOWN * self.most[name]
            for name, least in self.least.items()
        )

    def is_sharp(self, tolerance: float) -> bool:
        """Whether vLLM has counted much, and it is known so well how much that agreement is proof.

        What is unknown is within ``tolerance``, and less than what two engines with as much traffic
        usually differ by: by about the square root of their counts, if requests come at random.
        """
        return max(self.least.values()) >= _ENOUGH and all(
            self.most[name] - least <= min(tolerance * least, math.sqrt(max(least, 0)))
            for name, least in self.least.items()
        )

    def is_telling_and_within(self, tolerance: float) -> bool:
        """Whether it agrees, and says anything by that."""
        return self.is_telling(tolerance) and not self.is_outside(tolerance)

    @property
    def ratio(self) -> float | None:
        """The plug-in's tokens / vLLM's, drafted or else generated; None if vLLM has none.

        It is 1 for a total from the least to the most.
        """
        name = Compared.GENERATION_TOKENS
        if Compared.DRAFT_TOKENS in self.total:
            name = Compared.DRAFT_TOKENS
        if self.most[name] <= 0:
            return None
        if self.least[name] <= self.total[name] <= self.most[name]:
            return 1.0
        return self.total[name] / self.most[name]

    def farthest(self, tolerance: float) -> float | None:
        """The ratio of whichever number differs most, so that one near 1 hides no difference."""
        bound = self.least if self.is_below(tolerance) else self.most
        ratios = [self.total[name] / number for name, number in bound.items() if number > 0]
        return max(ratios, key=lambda ratio: abs(ratio - 1), default=None)


class Polls:
    """What vLLM had counted around the moments of a life's latest cuts, as its polls saw it."""

    def __init__(self) -> None:
        self.reports = 0  # of the life, as of the last poll
        # Polls since the latest cut at which vLLM had counted more than at the poll before.
        self.unreported = 0
        self._at_rest = 0  # polls in a row without a report or a new count
        self._counted: Totals | None = None  # at the last poll
        # At the last poll before the latest cut was there.
        self._before_latest: Totals | None = None
        # At the last poll before the cut before that one; None: unknown.
        self._least: Totals | None = None

    @property
    def are_at_rest(self) -> bool:
        """Whether all that was counted has arrived, since nothing has changed for a while."""
        return self._at_rest >= _REST_POLLS

    @property
    def is_least_known(self) -> bool:
        """Whether it is known what vLLM had counted at least at the latest cut."""
        return self._least is not None

    def forget_counts(self) -> None:
        """VLLM's counters have started again."""
        self._counted = None
        self._before_latest = None
        self._least = None

    def take(self, reports: int, counted: Totals) -> bool:
        """Takes in a poll; whether the life has a new cut."""
        before = self._counted
        self._counted = counted
        if before is not None and _has_grown(before, counted):
            self.unreported += 1

        if reports == self.reports:
            self._at_rest = self._at_rest + 1 if counted == before else 0
            return False

        is_next = reports == self.reports + 1
        self._least = self._before_latest if is_next else before
        self._before_latest = before

        self.reports = reports
        self.unreported = 0
        self._at_rest = 0
        return True

    def beside(self, names: Collection[Compared], total: Totals, counted: Totals) -> Comparison:
        """The latest cut's ``total`` beside what vLLM has ``counted``, in these numbers."""
        least = self._least
        if least is None or not least.keys() >= set(names):
            least = dict.fromkeys(names, 0)

        return Comparison(
            total={name: total[name] for name in names},
            least={name: least[name] for name in names},
            most={name: counted[name] for name in names},
        )


def compared_names(total: Totals, counted: Totals, origin: Totals) -> tuple[Compared, ...]:
    """What to compare: drafts, or generated tokens where there are none beyond the ``origin``."""
    both = total.keys() & counted.keys()
    drafted = _DRAFTED if both.issuperset(_DRAFTED) else ()
    has_drafted = any(total[name] > 0 or counted[name] > origin.get(name, 0) for name in drafted)

    if not has_drafted and Compared.GENERATION_TOKENS in both:
        return (Compared.GENERATION_TOKENS,)
    return drafted


def _has_grown(before: Totals, counted: Totals) -> bool:
    return any(number > before.get(name, number) for name, number in counted.items())


def _subtract(totals: Totals, before: Totals) -> Totals:
    return {name: number - before[name] for name, number in totals.items()}
