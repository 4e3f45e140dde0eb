"""Whether what a life of the plug-in reports is what vLLM itself counted.

Drafts are compared or, where vLLM drafts nothing, generated tokens.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

# seconds for which the plug-in, which reports once a second, or vLLM may be behind
_PATIENCE: Final = 30.0
_MOST_UNREPORTED: Final = 300  # with many requests and long steps, a report may take a minute
# seconds over which growth is compared, too, since a long exact life hides a late fault
_SPAN: Final = 300.0
_MARK_EVERY: Final = 60.0
# how far what earlier lives reported may be from the rest of vLLM's count, as a fraction of it
_REST: Final = 0.02
# Where vLLM may have counted up to so many times as much as it had at least, a total between the
# two says nothing.
_UNSURE: Final = 2.0
# A life whose totals are too high is confirmed by its growth alone once that has agreed over so
# many spans in a row, in each of which vLLM has counted at least so many drafts or tokens.
_SPANS: Final = 3
_ENOUGH: Final = 300
# For one that had been confirmed before, one span of so many is enough if it is known to this
# fraction how many.
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


class Standing(StrEnum):
    """How a life's latest cut compares with vLLM's counters."""

    WAITS = "waits"  # nothing to compare yet, or the next poll or report will tell
    AGREES = "agrees"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A cut's ``total``, and what vLLM had counted at its moment: from ``least`` to ``most``.

    The three have the same numbers.
    """

    total: Totals
    least: Totals
    most: Totals

    def since(self, before: "_Comparison") -> "_Comparison":
        """The growth since an earlier cut."""
        return _Comparison(
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

    def less(self, origin: Totals) -> "_Comparison":
        """The cut beside what vLLM has counted beyond the ``origin``."""
        return _Comparison(
            total=self.total,
            least={name: least - origin.get(name, 0) for name, least in self.least.items()},
            most={name: most - origin.get(name, 0) for name, most in self.most.items()},
        )

    def with_total_as_least(self) -> "_Comparison":
        """The same of a cut that agrees, where vLLM had at least as much as the cut has.

        A report that is read late may have less than the least, and what it lacked by then would be
        missing in the growth since.
        """
        least = {name: min(number, self.total[name]) for name, number in self.least.items()}

        return replace(self, least=least)

    def plus(self, others: Totals) -> "_Comparison":
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


@dataclass(frozen=True, slots=True)
class _Mark:
    """An earlier cut, and when it agreed: growth since then is compared."""

    at: float
    comparison: _Comparison


class _GrowthProof:
    """Whether its growth alone proves that a life is the engine's, whatever its totals are.

    Another engine behind the same load balancer may have as much traffic, and agree for a while. So
    the growth must be possible at every poll, over several spans in a row that are known so well
    that another engine's would differ. Pauses in the traffic shorten that: what was counted is
    known exactly then.

    Of a life that is known to be the engine's, it is only to be seen that vLLM's counters are
    younger.
    """

    def __init__(self) -> None:
        self.is_of_known = False
        self._first: _Comparison | None = None  # the start of the first span
        self._start: _Comparison | None = None  # of the present span
        self._spans = 0  # those before it that agreed

    @property
    def is_complete(self) -> bool:
        """Whether enough spans in a row have agreed."""
        return self._spans >= (1 if self.is_of_known else _SPANS)

    @property
    def proven_since(self) -> _Comparison | None:
        """The cut since which the growth has agreed, once that is enough; None before."""
        return self._first if self.is_complete else None

    def begin_again(self, start: _Comparison | None = None) -> None:
        """Forgets all spans; the next one is from ``start`` on, or from the next cut."""
        self._first = start
        self._start = start
        self._spans = 0

    def take(self, comparison: _Comparison, tolerance: float) -> None:
        """Takes in a cut of which vLLM's API server has counted all."""
        start = self._start
        if start is None or start.total.keys() != comparison.total.keys():
            self.begin_again(comparison)
            return

        growth = comparison.since(start)
        if growth.is_outside(0.0):
            self.begin_again(comparison)
        elif growth.is_sharp(tolerance) or (self.is_of_known and growth.is_well_known):
            self._spans += 1
            self._start = comparison
        elif comparison.width < start.width / 2:  # a span from within a burst would take long
            self._start = comparison


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
        # whether a cut that says anything has agreed, and none has differed since
        self.is_proven = False
        # whether it and the lives before it have reported all that vLLM has counted
        self.explains_all = False
        # whether it differs by a cut of its own, and not by having reported nothing for long
        self.is_contradicted = False
        # Of the last comparison that told whether the two agree. Where they do, it is of all that
        # vLLM has counted, and the split has of it.
        self.ratio: float | None = None
        self._origin: Totals = origin or {}
        # whether it follows another life, so that vLLM's counters have more than its own
        self.began_midway = any(self._origin.values())
        # whether it may, since all that vLLM has counted has not yet agreed with it
        self._may_be_midway = is_new
        self._may_be_older = may_be_older
        self._only_growth_tells = False
        self._growth_proof = _GrowthProof()
        self._comparison_before: _Comparison | None = None  # of the last poll, for the growth
        self._idle_at: float | None = None  # the last poll at which nothing had been counted
        self.has_begun = False  # whether it has been compared at a poll
        self.reports = 0  # as of the last poll
        self._has_agreed = False  # whether the latest cut has agreed at a poll
        self._counted: Totals | None = None  # by vLLM, at the last poll
        # by vLLM, at the last poll before the latest cut was there
        self._before_latest: Totals | None = None
        # by vLLM, at the last poll before the cut before that one; None: unknown
        self._least: Totals | None = None
        self._off_since: float | None = None  # the first poll at which one was behind the other
        self._marks: deque[_Mark] = deque()  # a few, the oldest first
        # the cut of the last poll, which becomes a mark once vLLM's API server has caught up
        self._next_mark: _Comparison | None = None
        # polls since the latest cut at which vLLM had counted more than at the poll before
        self._unreported = 0
        self._rest_polls = 0  # in a row, without a report or a new count

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
        self._next_mark = None
        self._growth_proof.begin_again()
        self._growth_proof.is_of_known |= self.is_proven
        self._comparison_before = None
        self._counted = None
        self._before_latest = None
        self._least = None
        self._off_since = None
        self._origin = {}
        self.began_midway = False
        self._may_be_midway = False
        self._may_be_older = True
        self._only_growth_tells = any(
            number > counted.get(name, number) for name, number in total.items()
        )

    def doubt_counters(self) -> None:
        """VLLM's counters may have started again at 0 while the life went on."""
        self._growth_proof.is_of_known |= self.is_proven
        self._may_be_older = True

    def compare_growth_only(self) -> None:
        """The life's totals are not of the time of vLLM's counters.

        It is older than these, or they have an unknown part of what a life before it had counted.
        """
        self._only_growth_tells = True

    def compare(self, life: PolledLife, tolerance: float) -> None:
        """Takes in a good poll. The two totals may differ by the fraction ``tolerance``."""
        self.has_begun = True
        self._follow_clock(life.at)
        self._take_in(life.reports, life.counted)
        has_counted = any(life.counted.values()) or any(life.total.values())
        if life.counted and not has_counted:
            self._idle_at = life.at

        names = self._names(life.total, life.counted)
        if not names:
            self._wait()
            return

        comparison = self._beside(names, life.total, life.counted)
        self._mark(life.at, comparison)
        self._note_origin(comparison, tolerance)
        self._note_growth(comparison, tolerance, life)
        self._note_whole(comparison, tolerance, life)
        standing, told = self._find(comparison, tolerance, life)
        if standing is Standing.AGREES and not (self.is_proven or told.is_telling(tolerance)):
            standing = Standing.WAITS

        is_silent = self._unreported > _MOST_UNREPORTED
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
        if self._marks and self._marks[-1].at > at:
            self._marks = deque(replace(mark, at=at) for mark in self._marks)

    def _take_in(self, reports: int, counted: Totals) -> None:
        before = self._counted
        self._counted = counted
        if before is not None:
            self._unreported += any(
                number > before.get(name, number) for name, number in counted.items()
            )

        if reports == self.reports:
            self._rest_polls = self._rest_polls + 1 if counted == before else 0
            return

        self._rest_polls = 0
        self._unreported = 0
        is_next = reports == self.reports + 1
        self._least = self._before_latest if is_next else before
        self._before_latest = before
        self.reports = reports
        self._has_agreed = False

    def _names(self, total: Totals, counted: Totals) -> tuple[Compared, ...]:
        """What to compare: drafts, or generated tokens where there are none."""
        both = total.keys() & counted.keys()
        drafted = _DRAFTED if both.issuperset(_DRAFTED) else ()
        has_drafted = any(
            total[name] > 0 or counted[name] > self._origin.get(name, 0) for name in drafted
        )
        if not has_drafted and Compared.GENERATION_TOKENS in both:
            return (Compared.GENERATION_TOKENS,)
        return drafted

    def _beside(self, names: Collection[Compared], total: Totals, counted: Totals) -> _Comparison:
        """The cut's ``total`` beside what vLLM has ``counted``, in these numbers."""
        least = self._least
        if least is None or not least.keys() >= set(names):
            least = dict.fromkeys(names, 0)
        return _Comparison(
            total={name: total[name] for name in names},
            least={name: least[name] for name in names},
            most={name: counted[name] for name in names},
        )

    def _mark(self, at: float, comparison: _Comparison) -> None:
        """Marks the cut of the last poll.

        By now, vLLM's API server has counted all of it.
        """
        if self._marks and self._marks[0].comparison.total.keys() != comparison.total.keys():
            self._marks.clear()

        following = self._next_mark
        self._next_mark = None
        if following is not None and following.total.keys() == comparison.total.keys():
            self._add_mark(_Mark(at, replace(following, most=comparison.most)))

        while len(self._marks) > 1 and at - self._marks[1].at >= _SPAN:
            self._marks.popleft()

    def _add_mark(self, mark: _Mark) -> None:
        """At intervals, once the life is proven."""
        is_first = not self._marks
        if is_first or (self.is_proven and mark.at - self._marks[-1].at >= _MARK_EVERY):
            self._marks.append(mark)

    def _note_for_a_mark(
        self, comparison: _Comparison, standing: Standing, tolerance: float
    ) -> None:
        is_first = standing is Standing.WAITS and not self._marks
        if self._least is None or not (standing is Standing.AGREES or is_first):
            return

        is_within = not comparison.is_outside(tolerance)
        self._next_mark = comparison.with_total_as_least() if is_within else comparison

    def _note_origin(self, comparison: _Comparison, tolerance: float) -> None:
        """Forgets an origin that is of a vLLM before this one.

        It is where the cut has all that is counted.
        """
        is_beyond = self._whole(comparison).is_above(tolerance)
        if is_beyond and self._as_of_now(comparison).is_telling_and_within(tolerance):
            self.forget_origin()

    def _note_growth(self, comparison: _Comparison, tolerance: float, life: PolledLife) -> None:
        """Notes whether the growth proves a life whose totals are too high.

        It may be older than vLLM's counters.
        """
        if not self._may_be_older or self._growth_proof.is_complete:
            return

        may_be_its_own = life.is_only or self._growth_proof.is_of_known
        is_too_high = self._whole(comparison).is_above(tolerance)
        if life.is_succeeded or not (may_be_its_own and is_too_high):
            self._growth_proof.begin_again()
            self._comparison_before = None
            return

        before = self._comparison_before
        self._comparison_before = comparison if self._least is not None else None
        if before is not None and before.total.keys() == comparison.total.keys():
            self._growth_proof.take(replace(before, most=comparison.most), tolerance)
        if self._rest_polls >= _REST_POLLS:
            self._growth_proof.take(replace(comparison, least=comparison.most), tolerance)

        start = self._growth_proof.proven_since
        if start is not None:
            self._marks = deque([_Mark(life.at, start)])

    def _note_whole(self, comparison: _Comparison, tolerance: float, life: PolledLife) -> None:
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

    def _whole(self, comparison: _Comparison) -> _Comparison:
        """The cut beside all that vLLM has counted since the life began."""
        return self._as_of_now(comparison).less(self._origin)

    def _rest(self, comparison: _Comparison, life: PolledLife) -> _Comparison:
        """The cut beside what vLLM has counted beyond what earlier lives had reported."""
        return self._as_of_now(comparison).less(life.earlier)

    def _find(
        self, comparison: _Comparison, tolerance: float, life: PolledLife
    ) -> tuple[Standing, _Comparison]:
        """How the cut compares, and what tells it: the cut itself, or its growth since a mark."""
        growth = comparison.since(self._marks[0].comparison) if self._marks else None
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
        comparison: _Comparison,
        growth: _Comparison | None,
        life: PolledLife,
        tolerance: float,
    ) -> tuple[Standing, _Comparison]:
        """The same where vLLM's counters have what earlier lives counted.

        These may have counted more than they reported. Where they have not, all is explained.
        """
        rest = self._rest(comparison, life)
        if rest.is_telling_and_within(tolerance):
            return Standing.AGREES, rest
        return _standing(growth or comparison, tolerance, is_known=growth is not None)

    def _has_rest(self, comparison: _Comparison, life: PolledLife, tolerance: float) -> bool:
        """Whether earlier lives have all that vLLM has counted beyond the cut; nothing else can.

        A few drafts of a stranger are not taken for those that vLLM's API server is ahead by, nor
        do they pass as few beside what known lives have.
        """
        if self._least is None:
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

    def _as_of_now(self, comparison: _Comparison) -> _Comparison:
        """The cut beside what vLLM has counted by now, if it should have as much.

        One that has agreed falls behind while no report comes; so may the first one, of which
        nobody knows how old it is.
        """
        if self._has_agreed or self._least is None:
            return replace(comparison, least=comparison.most)
        return comparison

    def _share(self, comparison: _Comparison, told: _Comparison, counting: Totals) -> float | None:
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
    comparison: _Comparison, tolerance: float, *, is_known: bool = True
) -> tuple[Standing, _Comparison]:
    """How a cut compares, and the cut."""
    if not is_known:
        return Standing.WAITS, comparison
    if comparison.is_outside(tolerance):
        return Standing.DIFFERS, comparison
    return Standing.AGREES, comparison


def _subtract(totals: Totals, before: Totals) -> Totals:
    return {name: number - before[name] for name, number in totals.items()}
