"""How the outputs of finished requests end, and whether more of them end badly than usual.

They are compared at the same temperatures: many models loop at temperature 0 by themselves. Replies
that are alike count once: a prompt that is sent again and again says no more than one.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import asin, inf, sqrt
from typing import Final

from sidecar.analysis.reply_kinds import ReplyKinds
from sidecar.analysis.windows.sums import SlidingSums
from sidecar.requests.keys import EMPTY, ENDINGS, LOOP, Ending
from sidecar.requests.messages import FinishedRequest

DAY: Final = 86_400.0  # seconds
_AROUND: Final = 1800.0  # seconds before and after this time yesterday that count as the same time
_YESTERDAY_SLICES: Final = 600.0  # seconds
# The past needs this many times ``min_requests``: a pod's first requests are seldom its usual ones.
_PAST: Final = 5
# alerts/recording.yaml compares with plain pods in the same way (tests/alerts/scenes_endings.py).
_FEWEST: Final = 5  # requests of a temperature to be compared, and bad endings to be called more
_LEAST_COMPARED: Final = 0.5  # share of the window's requests that must be comparable
_CLEARLY: Final = 0.05  # a difference of shares that matters
_BAD: Final[tuple[Ending, ...]] = (LOOP, EMPTY)

Cell = tuple[str, Ending]  # a temperature's label, and the ending
Counts = Mapping[Cell, int]


class Reference(StrEnum):
    """What the window's requests are compared with."""

    BASELINE = "baseline"
    PAST = "past"  # the pod's own, at most a day of it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """What a rise must reach to count, each of them."""

    requests: int  # that end so
    difference: float  # of the shares
    standard_errors: float
    odds_ratio: float


# It is compared at each poll, so some 300 windows a day: four standard errors are too many for
# chance on all but one day in ten (docs/measurements/fidelity.md).
_BEGINS: Final = _Needed(requests=_FEWEST, difference=_CLEARLY, standard_errors=4.0, odds_ratio=3.0)
# What has begun goes on until it is hardly more than usual: a window with few by chance does not
# end it.
_GOES_ON: Final = _Needed(requests=2, difference=0.02, standard_errors=1.0, odds_ratio=1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingChange:
    """How often requests of the window end in one way, and how often the reference's do.

    ``share`` is that of the ``requests`` that can be compared, ``usual`` what it would be if those
    of each temperature ended as the reference's; both 0 to 1. ``standard_errors`` is the difference
    in units of its own error, see ``_standard_errors``. ``odds_ratio`` is how many times the
    reference's the odds of ending so are, at the same temperatures: see ``_odds_ratio``.
    ``was_more`` says whether it was clearly more when it was last judged: it then takes less to
    stay so. ``as_yesterday``: at this time yesterday, about as many ended so.
    """

    ending: Ending
    share: float
    usual: float
    standard_errors: float
    odds_ratio: float
    requests: int
    reference: Reference
    was_more: bool = False
    as_yesterday: bool = False

    @property
    def is_clearly_more(self) -> bool:
        """Whether it is more by far more than chance, and by enough to matter.

        What comes each day at this time does not begin to be, but what has begun goes on.
        """
        if self.as_yesterday and not self.was_more:
            return False
        needed = _GOES_ON if self.was_more else _BEGINS

        is_many = round(self.share * self.requests) >= needed.requests
        matters = self.share - self.usual > needed.difference
        exceeds_chance = self.standard_errors >= needed.standard_errors
        return is_many and matters and exceeds_chance and self.odds_ratio >= needed.odds_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingAt:
    """How often requests of the window at one temperature end in one way.

    ``share`` is that of the ``requests`` there, ``usual`` the reference's, both 0 to 1. The latter
    is None where there is no reference, or it has fewer than five requests there.
    """

    temperature: str
    requests: int
    share: float
    usual: float | None = None

    @property
    def is_often(self) -> bool:
        """Whether it is often enough to be told."""
        return _is_often(self.share, self.requests)

    @property
    def has_risen(self) -> bool:
        """Whether it is often, and more than usual by enough to matter."""
        if self.usual is None:
            return False
        return self.is_often and self.share - self.usual > _CLEARLY


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingsReport:
    """How a model's requests of the window ended.

    ``shares`` are of all ``requests``. ``changes`` has the bad endings, if they can be compared.
    ``temperatures`` says of each bad ending where some requests end so, most of them first.
    """

    requests: int
    shares: Mapping[Ending, float]
    changes: Mapping[Ending, EndingChange] = field(default_factory=dict)
    temperatures: Mapping[Ending, tuple[EndingAt, ...]] = field(default_factory=dict)

    @property
    def worse(self) -> frozenset[Ending]:
        """The bad endings that are clearly more frequent than usual."""
        changes = self.changes.values()
        return frozenset(change.ending for change in changes if change.is_clearly_more)

    @property
    def is_worse(self) -> bool:
        """Whether requests clearly end badly more often than usual."""
        return bool(self.worse)

    def is_often(self, ending: Ending) -> bool:
        """Whether requests end so often enough to be told, whatever is usual."""
        return _is_often(self.shares.get(ending, 0.0), self.requests)


@dataclass(frozen=True, slots=True)
class _Slice:
    """What ended from ``at`` on, for some minutes."""

    at: float
    counts: dict[Cell, int]


class Endings:
    """How a model's requests end: over the window, and before it.

    While more end badly than usual, those that finish are no part of the pod's past, and nothing
    leaves it. So what goes on does not become usual.
    """

    def __init__(self, window: float, baseline: Counts) -> None:
        """``window`` is in seconds; ``baseline`` is empty if none was measured."""
        self._seconds = window
        self._baseline = baseline
        self._at = 0.0  # as of the last ``mark``
        # All of the window; all else has only the first of those that are alike.
        self._all: SlidingSums[Cell, int] = SlidingSums(window, 20)
        self._recent: SlidingSums[Cell, int] = SlidingSums(window, 20)
        # Those of the window that the past already has.
        self._usual: SlidingSums[Cell, int] = SlidingSums(window, 20)
        self._past: SlidingSums[Cell, int] = SlidingSums(DAY, 24)
        # All of a day and some, by time: also what is worse.
        self._times: deque[_Slice] = deque()
        self._kinds = ReplyKinds(window)
        self._worse: frozenset[Ending] = frozenset()  # as of the last time that it could be told
        # As of the last ``judge``; None if too few are known.
        self.report: EndingsReport | None = None

    def begin_again(self) -> "Endings":
        """The same without a window: the past goes on, since it is what tells a change.

        What was worse stays so until the new window can tell, and the past stands still as long.
        """
        again = Endings(self._seconds, self._baseline)
        again._past = self._past
        again._times = self._times
        again._worse = self._worse
        return again

    def finished(self, at: float, temperature: str, requests: Iterable[FinishedRequest]) -> None:
        """Adds requests that finished before ``at``, where the plug-in tells how they end."""
        all_of: dict[Cell, int] = {}
        counts: dict[Cell, int] = {}
        for request in requests:
            if request.ending is not None:
                cell = temperature, request.ending
                all_of[cell] = all_of.get(cell, 0) + 1
                if self._kinds.is_first(at, temperature, request):
                    counts[cell] = counts.get(cell, 0) + 1

        if not all_of:
            return
        self._all.add(at, all_of)
        self._recent.add(at, counts)
        self._add_time(at, counts)
        if not self._worse:
            self._usual.add(at, counts)
            self._past.add(at, counts)

    def _add_time(self, at: float, counts: Counts) -> None:
        if self._times and at < self._times[-1].at:  # the clock was set back
            self._times.clear()
        if not self._times or at - self._times[-1].at >= _YESTERDAY_SLICES:
            self._times.append(_Slice(at, {}))
        last = self._times[-1].counts
        for cell, count in counts.items():
            last[cell] = last.get(cell, 0) + count
        while self._times[0].at < at - DAY - _AROUND - _YESTERDAY_SLICES:
            self._times.popleft()

    def mark(self, at: float) -> None:
        """Forgets what has left the windows that end at ``at``."""
        self._at = at
        self._kinds.drop(at)
        self._all.drop(at)
        self._recent.drop(at)
        self._usual.drop(at)
        if not self._worse:
            self._past.drop(at)

    def judge(self, min_requests: int) -> None:
        """Makes the report, unless the window has fewer than ``min_requests`` requests."""
        recent = self._all.sums
        requests = sum(recent.values())
        self.report = None
        if requests < max(min_requests, 1):
            return  # what was worse stays so until enough is known to tell

        changes = {ending: self._change(ending, min_requests) for ending in _BAD}
        self.report = EndingsReport(
            requests=requests,
            shares={ending: _count(recent, ending) / requests for ending in ENDINGS},
            changes={ending: change for ending, change in changes.items() if change is not None},
            temperatures={
                ending: at_temperatures(ending, recent, self._compared_with(change))
                for ending, change in changes.items()
            },
        )
        self._worse = self.report.worse

    def _change(self, ending: Ending, min_requests: int) -> EndingChange | None:
        """By the baseline, if that has the window's temperatures; else by the pod's past."""
        recent = self._recent.sums
        was_more = ending in self._worse
        by_baseline = compare(
            ending,
            recent,
            self._baseline,
            Reference.BASELINE,
            least=min_requests,
            was_more=was_more,
        )
        if by_baseline is not None:
            return by_baseline

        by_past = compare(
            ending,
            recent,
            self._before_window(),
            Reference.PAST,
            least=_PAST * min_requests,
            was_more=was_more,
        )
        if by_past is None:
            return None
        yesterday = compare(
            ending, recent, self._yesterday(), Reference.PAST, least=_PAST * min_requests
        )
        is_usual = yesterday is not None and not yesterday.is_clearly_more
        return replace(by_past, as_yesterday=is_usual)

    def _yesterday(self) -> Counts:
        """Around this time yesterday."""
        begin = self._at - DAY - _AROUND
        end = self._at - DAY + _AROUND
        counts: dict[Cell, int] = {}
        for part in self._times:
            if begin <= part.at < end:
                for cell, count in part.counts.items():
                    counts[cell] = counts.get(cell, 0) + count
        return counts

    def _before_window(self) -> Counts:
        """The pod's past, without the window."""
        usual = self._usual.sums
        return {cell: count - usual.get(cell, 0) for cell, count in self._past.sums.items()}

    def _compared_with(self, change: EndingChange | None) -> Counts:
        """What a change was compared with; empty if that is nothing."""
        if change is None:
            return {}
        is_measured = change.reference is Reference.BASELINE
        return self._baseline if is_measured else self._before_window()


def at_temperatures(ending: Ending, recent: Counts, before: Counts) -> tuple[EndingAt, ...]:
    """Where requests end so, most of them first, and how often those of the reference did there."""
    references = _by_temperature(before)
    found = []
    for temperature, requests in _by_temperature(recent).items():
        ended = recent.get((temperature, ending), 0)
        if not ended:
            continue

        other = references.get(temperature, 0)
        usual = None
        if other >= _FEWEST:
            usual = before.get((temperature, ending), 0) / other
        place = EndingAt(
            temperature=temperature, requests=requests, share=ended / requests, usual=usual
        )
        found.append(place)

    return tuple(sorted(found, key=lambda place: place.share * place.requests, reverse=True))


def compare(
    ending: Ending,
    recent: Counts,
    before: Counts,
    reference: Reference,
    *,
    least: int,
    was_more: bool = False,
) -> EndingChange | None:
    """Requests that finished recently and those of the reference, at the same temperatures.

    None unless the reference has at the ``least`` so many requests, at the temperatures of at least
    half of the recent ones. ``was_more`` is as in ``EndingChange``.
    """
    requests = _by_temperature(recent)
    references = _by_temperature(before)
    shared = [
        temperature
        for temperature, count in requests.items()
        if min(count, references.get(temperature, 0)) >= _FEWEST
    ]
    compared = sum(requests[temperature] for temperature in shared)
    is_enough = sum(references[temperature] for temperature in shared) >= least
    if not compared or not is_enough or compared < _LEAST_COMPARED * sum(requests.values()):
        return None

    strata = [
        _Stratum(
            requests=requests[temperature],
            bad=recent.get((temperature, ending), 0),
            reference_requests=references[temperature],
            reference_bad=before.get((temperature, ending), 0),
        )
        for temperature in shared
    ]
    return EndingChange(
        ending=ending,
        share=sum(stratum.bad for stratum in strata) / compared,
        usual=sum(stratum.requests * stratum.usual for stratum in strata) / compared,
        standard_errors=_standard_errors(strata),
        odds_ratio=_odds_ratio(strata),
        requests=compared,
        reference=reference,
        was_more=was_more,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stratum:
    """The requests of one temperature and the reference's, and how many of them end badly."""

    requests: int
    bad: int
    reference_requests: int
    reference_bad: int

    @property
    def share(self) -> float:
        return self.bad / self.requests

    @property
    def usual(self) -> float:
        return self.reference_bad / self.reference_requests

    @property
    def weight(self) -> float:
        """Of a comparison of two shares: the smaller number of requests bounds it."""
        total = self.requests + self.reference_requests
        return self.requests * self.reference_requests / total

    @property
    def rise(self) -> float:
        """The difference of the stabilized shares: its variance is 1 / ``weight``."""
        usual = _stabilized(self.reference_bad, self.reference_requests)
        return _stabilized(self.bad, self.requests) - usual


def _standard_errors(strata: Sequence[_Stratum]) -> float:
    """The mean rise over temperatures, by weight, in standard errors.

    The reference's own error is in it. The transformation makes the error the same for each share,
    so that it holds for the few bad endings of a usual window, too, where a normal distribution
    of the shares themselves would call chance a rise.
    """
    weights = sum(stratum.weight for stratum in strata)
    return sum(stratum.weight * stratum.rise for stratum in strata) / sqrt(weights)


def _stabilized(bad: int, requests: int) -> float:
    """A share's arcsine transformation, whose variance is 1 / ``requests`` (Anscombe, 1948)."""
    share = (bad + 0.375) / (requests + 0.75)
    return 2 * asin(sqrt(share))


def _odds_ratio(strata: Sequence[_Stratum]) -> float:
    """The common odds ratio over temperatures (Mantel and Haenszel, 1959).

    So a temperature at which nearly all end badly anyway hides no rise at another one, as it would
    in the odds of all together, and one with a small reference does not decide alone. Infinite
    where none of the reference ends badly, or all that finished recently do; 1 where neither says
    anything.
    """
    risen = sum(stratum.weight * stratum.share * (1 - stratum.usual) for stratum in strata)
    usual = sum(stratum.weight * (1 - stratum.share) * stratum.usual for stratum in strata)
    if usual <= 0:
        return inf if risen > 0 else 1.0
    return risen / usual


def _is_often(share: float, requests: int) -> bool:
    return share >= _CLEARLY and round(share * requests) >= _FEWEST


def _count(counts: Counts, wanted: Ending) -> int:
    return sum(count for (_, ending), count in counts.items() if ending == wanted)


def _by_temperature(counts: Counts) -> dict[str, int]:
    """All requests by temperature."""
    requests: dict[str, int] = {}
    for (temperature, _), count in counts.items():
        requests[temperature] = requests.get(temperature, 0) + count
    return requests
