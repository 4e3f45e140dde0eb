"""What a judgement says: whether speculation pays, by which value, and on what evidence.

``verdict.py`` makes them; all that shows or pushes something reads them, and decides nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sidecar.analysis.advice import Advice, Direction
from sidecar.analysis.certainty.side import NOWHERE, CertainSide
from sidecar.analysis.evidence import Acceptance, Evidence


class Verdict(StrEnum):
    """The effect of speculation on the time that generation takes."""

    NET_POSITIVE = "net_positive"
    BREAK_EVEN = "break_even"
    NET_NEGATIVE = "net_negative"
    INSUFFICIENT_DATA = "insufficient_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """What keeps an acceptance rate from being certain.

    ``rate`` is over ``seconds``, with its standard ``error``; ``line`` is the threshold that is
    within reach. ``needed``: at today's traffic, about so many seconds more decide it if the rate
    stays; None if more than ``past.py`` remembers would.
    """

    rate: float
    error: float
    seconds: float
    line: float
    needed: float | None


class Basis(StrEnum):
    """What a verdict is based on."""

    SPEEDUP = "speedup"  # plain time per token / actual, if plain decoding was measured
    ACCEPTANCE = "acceptance"  # the rule of thumb, if nothing better is known


@dataclass(frozen=True, slots=True)
class Gate:
    """A setting in ``thresholds`` that requires more traffic than there is, and its value."""

    threshold: str
    value: float


def verdict_of(by_acceptance: Verdict, by_speedup: Verdict | None) -> Verdict:
    """``Judgement.verdict``, also of one that is still being made."""
    return by_acceptance if by_speedup is None else by_speedup


def is_uncertain(by_speedup: Verdict | None, undecided: Undecided | None) -> bool:
    """``Judgement.is_undecided``, also of one that is still being made."""
    return by_speedup is Verdict.INSUFFICIENT_DATA or undecided is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on one model, temperature or engine, with its evidence.

    ``evidence`` is what it was made from: it holds as long as the judgement does, while the values
    of its poll age. ``is_known`` is False if nothing was judged, for example after polls have
    failed for long.
    ``judged`` is the window that was judged, None below the gates; ``gate`` is the first of those
    that keeps it from being judged. ``by_acceptance`` is the verdict by the rule of thumb, once it
    is certain on which side of the two thresholds the rate is: ``loses`` and ``wins`` are where it
    stands, and with ``is_kept`` the rate of the judged window alone would have another verdict.
    ``undecided`` says what keeps it from being certain, where it is to decide. ``by_speedup`` is
    the measured verdict, None if no speedup is known. ``held_below`` is the threshold that a
    speedup has crossed again, if only the margin keeps the verdict from rising. ``is_low``: the
    acceptance rate is certainly below its threshold, or was and is not yet certainly above it;
    None if neither was ever certain.
    ``has_collapsed``, of a model as a whole: a fault keeps drafts from being accepted.
    ``wanted_tokens``: the acceptance rate is past the threshold for fewer or more draft tokens, or
    was and is not yet clearly back; None between the two.
    ``since``: Unix seconds from which on it has said the same; None before the first poll.
    ``was``: the verdict that it replaced, by the same basis; None if there was none.
    """

    evidence: Evidence = field(default_factory=Evidence)
    is_known: bool = False
    judged: Acceptance | None = None
    gate: Gate | None = None
    by_acceptance: Verdict = Verdict.INSUFFICIENT_DATA
    by_speedup: Verdict | None = None
    loses: CertainSide = NOWHERE
    wins: CertainSide = NOWHERE
    undecided: Undecided | None = None
    is_kept: bool = False
    held_below: float | None = None
    is_low: bool | None = None
    has_collapsed: bool = False
    wanted_tokens: Direction | None = None
    since: float | None = None
    was: Verdict | None = None

    @property
    def leans(self) -> bool:
        """Whether a speedup is known, but its interval reaches across a threshold."""
        return self.by_speedup is Verdict.INSUFFICIENT_DATA

    @property
    def is_undecided(self) -> bool:
        """Whether there is enough traffic, but no verdict is certain yet."""
        return is_uncertain(self.by_speedup, self.undecided)

    @property
    def verdict(self) -> Verdict:
        """The verdict in force: by speedup if it is known."""
        return verdict_of(self.by_acceptance, self.by_speedup)

    @property
    def basis(self) -> Basis:
        """What ``verdict`` is based on."""
        if self.by_speedup is not None or not self.evidence.is_ruled:
            return Basis.SPEEDUP
        return Basis.ACCEPTANCE

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted over the window that was judged, 0 to 1; None below the gates."""
        return None if self.judged is None else self.judged.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJudgement:
    """All judgements on one model; ``temperatures`` and ``engines`` have those of its evidence.

    ``advice`` is on the number of draft tokens; None below the gates.
    """

    whole: Judgement = field(default_factory=Judgement)
    advice: Advice | None = None
    temperatures: Mapping[str, Judgement] = field(default_factory=dict)
    engines: Mapping[str, Judgement] = field(default_factory=dict)
