"""Whether what a life of the plug-in reports is what vLLM itself counted."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from sidecar.analysis.split.comparison import (
    Comparison,
    Polls,
    Totals,
    compared_names,
)
from sidecar.analysis.split.proof import GrowthProof, Marks

# seconds for which the plug-in, which reports once a second, or vLLM may be behind
_PATIENCE: Final = 30.0
_MOST_UNREPORTED: Final = 300  # with many requests and long steps, a report may take a minute
# how far what earlier lives reported may be from the rest of vLLM's count, as a fraction of it
_REST: Final = 0.02


class Standing(StrEnum):
    """How a life's latest cut compares with vLLM's counters."""

    WAITS = "waits"  # nothing to compare yet, or the next poll or report will tell
    AGREES = "agrees"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledLife:
    """What a good poll at ``at`` gives to compare of a life.

    These are ``total``, of its latest cut, which came after ``reports`` reports, and ``counted``,
    vLLM's counters. ``earlier`` is what the lives before it had reported, ``known`` what those of
    them had that are part of the split, and ``counting`` how much of that is. ``is_only``: nothing
    else that is connected can be the engine's plug-in, and nothing says that this life cannot.
    ``is_succeeded``: the life has left, and what vLLM counts may be another one's by now.
    """

    at: float
    reports: int
    total: Totals
    counted: Totals
    earlier: Totals = field(default_factory=dict)
    known: Totals = field(default_factory=dict)
    counting: Totals = field(default_factory=dict)
    is_only: bool = True
    is_succeeded: bool = False


class Trust:
    """Compares the cuts of one life with vLLM's counters at each good poll.

    The two are never from the same moment. A cut has at least what vLLM had counted when the report
    before it was complete, since the engine counts before its API server does, and at most what
    vLLM has counted once the API server has caught up.

    Where vLLM's counters began before the life did, or have started again since, the totals are of
    different times, but their growth can be compared.
    """

    def __init__(
        self, origin: Totals | None = None, *, is_new: bool = False, may_be_older: bool = False
    ) -> None:
        """``origin`` is what vLLM had counted before the life began; None: nothing that is known.

        ``is_new``: it began while this sidecar was listening, so perhaps after vLLM's counters.
        ``may_be_older``: it began before that, so vLLM may have made its counters anew since
        without the sidecar's knowledge.
        """
        self.standing = Standing.WAITS
        self.has_begun = False  # whether it has been compared at a poll
        # Whether a cut that says anything has agreed, and none has differed since.
        self.is_proven = False
        # Whether it and the lives before it have reported all that vLLM has counted.
        self.explains_all = False
        # Whether it differs by a cut of its own, and not by having reported nothing for long.
        self.is_contradicted = False
        # Of the last comparison that told whether the two agree. Where they do, it is of all that
        # vLLM has counted, and the split has of it.
        self.ratio: float | None = None

        # When the life began, beside vLLM's counters.
        self._origin: Totals = origin or {}
        # Whether it follows another life, so that vLLM's counters have more than its own,
        self.began_midway = any(self._origin.values())
        # or whether it may, since all that vLLM has counted has not yet agreed with it.
        self._may_be_midway = is_new
        self._may_be_older = may_be_older
        self._only_growth_tells = False

        # The polls so far, and the cuts that they confirmed.
        self._polls = Polls()
        self._marks = Marks()
        self._growth_proof = GrowthProof()
        self._has_agreed = False  # whether the latest cut has agreed at a poll
        self._idle_at: float | None = None  # the last poll at which nothing had been counted
        self._off_since: float | None = None  # the first poll at which one was behind the other

    @property
    def reports(self) -> int:
        """The life's reports as of the last poll."""
        return self._polls.reports

    @property
    def follows_another(self) -> bool:
        """Whether vLLM had counted for its engine before it began, as far as is known."""
        return self.began_midway or (self._may_be_midway and self.reports > 0)

    def holds_nothing(self, at: float) -> bool:
        """Whether 0 is right for all of it at ``at``, since vLLM had counted nothing either.

        It stays so for a while after vLLM's first counts, until a cut with these has agreed.
        """
        if self.is_proven or self._idle_at is None or self.standing is not Standing.WAITS:
            return False
        return at - self._idle_at <= _PATIENCE

    def forget_origin(self) -> None:
        """When the life began is not known, so neither is what vLLM had counted by then."""
        self._origin = {}
        self.began_midway = False

    def restart_counters(self, counted: Totals, total: Totals) -> None:
        """VLLM's counters have started again at 0 while the life went on.

        If the life has counted no more than vLLM since then, it may have begun with them, or its
        latest cut may be an old one.
        """
        self._marks.clear()
        self._growth_proof.begin_again()
        self._polls.forget_counts()
        self._off_since = None
        self._origin = {}
        self.began_midway = False
        self._may_be_midway = False
        self.doubt_counters()
        self._only_growth_tells = any(
            number > counted.get(name, number) for name, number in total.items()
        )

    def doubt_counters(self) -> None:
        """VLLM's counters may have started again at 0 while the life went on."""
        self._may_be_older = True
        if self.is_proven:
            self._growth_proof.is_of_known = True

    def compare_growth_only(self) -> None:
        """The life's totals are not of the time of vLLM's counters.

        It is older than these, or they have an unknown part of what a life before it had counted.
        """
        self._only_growth_tells = True

    def compare(self, life: PolledLife, tolerance: float) -> None:
        """Takes in a good poll. The two totals may differ by the fraction ``tolerance``."""
        self.has_begun = True
        self._follow_clock(life.at)
        if self._polls.take(life.reports, life.counted):
            self._has_agreed = False

        has_counted = any(life.counted.values()) or any(life.total.values())
        if life.counted and not has_counted:
            self._idle_at = life.at

        names = compared_names(life.total, life.counted, self._origin)
        if not names:
            self._wait()
            return

        comparison = self._polls.beside(names, life.total, life.counted)
        self._marks.take(life.at, comparison, is_proven=self.is_proven)
        self._note_origin(comparison, tolerance)
        self._note_growth(comparison, tolerance, life)
        self._note_whole(comparison, tolerance, life)
        standing, told = self._find(comparison, tolerance, life)
        if standing is Standing.AGREES and not (self.is_proven or told.is_telling(tolerance)):
            standing = Standing.WAITS

        is_silent = self._polls.unreported > _MOST_UNREPORTED
        if standing is Standing.DIFFERS or is_silent:
            self._differ(life.at, told.farthest(tolerance), is_silent=is_silent)
        elif standing is Standing.AGREES:
            share = self.ratio
            if not life.is_succeeded:
                share = self._share(comparison, told, life.counting)
            self._agree(share)
        else:
            self._off_since = None
            self._wait()

        self._note_for_a_mark(comparison, standing, tolerance)

    def contradict(self) -> None:
        """The life contradicts itself, so nothing of it is compared."""
        self.standing = Standing.DIFFERS
        self.is_proven = False
        self.is_contradicted = True

    def _follow_clock(self, at: float) -> None:
        """If the clock was set back, what happened before is as of now."""
        if self._idle_at is not None:
            self._idle_at = min(self._idle_at, at)
        if self._off_since is not None:
            self._off_since = min(self._off_since, at)
        self._marks.follow_clock(at)

    def _note_for_a_mark(
        self, comparison: Comparison, standing: Standing, tolerance: float
    ) -> None:
        is_first = standing is Standing.WAITS and self._marks.are_empty
        if not self._polls.is_least_known or not (standing is Standing.AGREES or is_first):
            return

        is_within = not comparison.is_outside(tolerance)
        self._marks.note(comparison.with_total_as_least() if is_within else comparison)

    def _note_origin(self, comparison: Comparison, tolerance: float) -> None:
        """Forgets an origin that is of a vLLM before this one.

        It is where the cut has all that is counted.
        """
        is_beyond = self._whole(comparison).is_above(tolerance)
        if is_beyond and self._as_of_now(comparison).is_telling_and_within(tolerance):
            self.forget_origin()

    def _note_growth(self, comparison: Comparison, tolerance: float, life: PolledLife) -> None:
        """Notes whether the growth proves a life whose totals are too high.

        It may be older than vLLM's counters.
        """
        if not self._may_be_older or self._growth_proof.is_complete:
            return

        may_be_its_own = life.is_only or self._growth_proof.is_of_known
        is_too_high = self._whole(comparison).is_above(tolerance)
        if life.is_succeeded or not (may_be_its_own and is_too_high):
            self._growth_proof.begin_again()
            return

        self._growth_proof.take(comparison, self._polls, tolerance)
        start = self._growth_proof.proven_since
        if start is not None:
            self._marks.begin_at(life.at, start)

    def _note_whole(self, comparison: Comparison, tolerance: float, life: PolledLife) -> None:
        """Notes whether the cut, or the cut and earlier lives' reports, are all that vLLM has."""
        self.explains_all = False
        whole = self._whole(comparison)
        if self._does_only_growth_tell or life.is_succeeded or whole.is_above(tolerance):
            return

        if whole.is_telling_and_within(tolerance):
            self._may_be_midway = False
            self.explains_all = self._has_rest(comparison, life, tolerance)
        elif self.follows_another and self._rest(comparison, life).is_telling_and_within(tolerance):
            self.explains_all = self._has_rest(comparison, life, tolerance)

    @property
    def _does_only_growth_tell(self) -> bool:
        """Whether the totals are not of the time of vLLM's counters, as far as is known."""
        return self._only_growth_tells or self._growth_proof.is_complete

    def _whole(self, comparison: Comparison) -> Comparison:
        """The cut beside all that vLLM has counted since the life began."""
        return self._as_of_now(comparison).less(self._origin)

    def _rest(self, comparison: Comparison, life: PolledLife) -> Comparison:
        """The cut beside what vLLM has counted beyond what earlier lives had reported."""
        return self._as_of_now(comparison).less(life.earlier)

    def _find(
        self, comparison: Comparison, tolerance: float, life: PolledLife
    ) -> tuple[Standing, Comparison]:
        """How the cut compares, and what tells it: the cut itself, or its growth since a mark."""
        growth = self._marks.growth_of(comparison)
        if self._does_only_growth_tell:
            return _standing(growth or comparison, tolerance, is_known=growth is not None)

        whole = self._whole(comparison)
        if whole.is_above(tolerance):
            return Standing.DIFFERS, whole
        if life.is_succeeded:  # it keeps what it has, but this confirms nothing
            return (Standing.AGREES if self.is_proven else Standing.WAITS), whole
        if self.follows_another and not whole.is_telling_and_within(tolerance):
            return self._find_midway(comparison, growth, life, tolerance)
        if whole.is_below(tolerance) or growth is None:
            return _standing(whole, tolerance)

        standing, told = _standing(growth, tolerance)
        return standing, told if standing is Standing.DIFFERS else whole

    def _find_midway(
        self,
        comparison: Comparison,
        growth: Comparison | None,
        life: PolledLife,
        tolerance: float,
    ) -> tuple[Standing, Comparison]:
        """The same where vLLM's counters have what earlier lives counted.

        These may have counted more than they reported. Where they have not, all is explained.
        """
        rest = self._rest(comparison, life)
        if rest.is_telling_and_within(tolerance):
            return Standing.AGREES, rest
        return _standing(growth or comparison, tolerance, is_known=growth is not None)

    def _has_rest(self, comparison: Comparison, life: PolledLife, tolerance: float) -> bool:
        """Whether earlier lives have all that vLLM has counted beyond the cut; nothing else can.

        A few drafts of a stranger are not taken for those that vLLM's API server is ahead by, nor
        do they pass as few beside what known lives have.
        """
        if not self._polls.is_least_known:
            return False
        for name, total in comparison.total.items():
            before = life.earlier.get(name, 0)
            unknown = before - life.known.get(name, 0)
            slack = min(tolerance, _REST) * (unknown or before)
            least = comparison.least[name] - total
            most = comparison.most[name] - total
            if most - least > slack or not least - slack <= before <= most + slack:
                return False
        return any(life.earlier.get(name, 0) for name in comparison.total)

    def _as_of_now(self, comparison: Comparison) -> Comparison:
        """The cut beside what vLLM has counted by now, if it should have as much.

        One that has agreed falls behind while no report comes; so may the first one, of which
        nobody knows how old it is.
        """
        if self._has_agreed or not self._polls.is_least_known:
            return replace(comparison, least=comparison.most)
        return comparison

    def _share(self, comparison: Comparison, told: Comparison, counting: Totals) -> float | None:
        """How much of vLLM's count the split has, with what lives before this one contribute.

        An engine core that ended before it could send its last counts is missing there, however
        well the next one agrees. Where only growth tells, it is not known how much that is.
        """
        if self._does_only_growth_tell:
            return told.ratio
        return self._as_of_now(comparison).plus(counting).ratio

    def _agree(self, ratio: float | None) -> None:
        self.standing = Standing.AGREES
        self.ratio = ratio
        self.is_proven = True
        self.is_contradicted = False
        self._has_agreed = True
        self._off_since = None

    def _differ(self, at: float, ratio: float | None, *, is_silent: bool) -> None:
        """Not at once.

        After a stall of the sidecar, a poll may come before reports that are older than its page.
        """
        if self._off_since is None:
            self._off_since = at

        if not is_silent and at - self._off_since <= _PATIENCE:
            self._wait()
            return

        if self._growth_proof.is_complete and not is_silent:
            self._growth_proof.begin_again()
        self.standing = Standing.DIFFERS
        self.ratio = ratio
        self.is_proven = False
        self.is_contradicted = not (is_silent or self._has_agreed)

    def _wait(self) -> None:
        """The last cut that agreed holds, if it is still the latest."""
        if self.standing is not Standing.DIFFERS:
            self.standing = Standing.AGREES if self._has_agreed else Standing.WAITS


def _standing(
    comparison: Comparison, tolerance: float, *, is_known: bool = True
) -> tuple[Standing, Comparison]:
    """How a cut compares, and the cut."""
    if not is_known:
        return Standing.WAITS, comparison
    if comparison.is_outside(tolerance):
        return Standing.DIFFERS, comparison
    return Standing.AGREES, comparison
