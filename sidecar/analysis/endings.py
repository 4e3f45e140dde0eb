"""How the outputs of finished requests end, and whether more of them end badly than usual.

They are compared at the same temperatures: many models loop at temperature 0 by themselves.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, sqrt
from typing import Final

from sidecar.analysis.windows.sums import SlidingSums
from sidecar.requests.messages import FinishedRequest
from sidecar.requests.tables import EMPTY, ENDINGS, LOOP, Ending

DAY: Final = 86_400.0  # seconds
# The past needs this many times ``min_requests``: a pod's first requests are seldom its usual ones.
_PAST: Final = 5
_FEWEST: Final = 5  # requests of a temperature to be compared, and bad endings to be called more
_LEAST_COMPARED: Final = 0.5  # share of the window's requests that must be comparable
_CLEARLY: Final = 0.05  # a difference of shares that matters
_MANY_ERRORS: Final = 3.0  # standard errors: it is compared again with each poll
_ODDS: Final = 3.0  # the odds of a bad ending have risen at least so many times
_BAD: Final[tuple[Ending, ...]] = (LOOP, EMPTY)

Cell = tuple[str, Ending]  # a temperature's label, and the ending
Counts = Mapping[Cell, int]


class Reference(StrEnum):
    """What the window's requests are compared with."""

    BASELINE = "baseline"
    PAST = "past"  # the pod's own, at most a day of it


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingChange:
    """How often requests of the window end in one way, and how often the reference's do.

    ``share`` is that of the ``requests`` that can be compared, ``usual`` what it would be if those
    of each temperature ended as the reference's; both 0 to 1. ``error`` is the standard error of
    the difference. ``odds_ratio`` is how many times the reference's the odds of ending so are, at
    the same temperatures: see ``_odds_ratio``.
    """

    ending: Ending
    share: float
    usual: float
    error: float
    odds_ratio: float
    requests: int
    reference: Reference

    @property
    def is_clearly_more(self) -> bool:
        """Whether it is more by far more than chance, and by enough to matter."""
        difference = self.share - self.usual
        is_many = self.share * self.requests >= _FEWEST
        exceeds_chance = difference > max(_MANY_ERRORS * self.error, _CLEARLY)
        return is_many and exceeds_chance and self.odds_ratio >= _ODDS


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
        return self.share >= _CLEARLY and self.share * self.requests >= _FEWEST

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
    def is_worse(self) -> bool:
        """Whether requests clearly end badly more often than usual."""
        return any(change.is_clearly_more for change in self.changes.values())


class Endings:
    """How a model's requests end: over the window, and before it.

    While more end badly than usual, those that finish are no part of the pod's past, and nothing
    leaves it. So what goes on does not become usual.
    """

    def __init__(self, window: float, baseline: Counts) -> None:
        """``window`` is in seconds; ``baseline`` is empty if none was measured."""
        self._seconds = window
        self._baseline = baseline
        self._recent: SlidingSums[Cell, int] = SlidingSums(window, 20)
        # Those of the window that the past already has.
        self._usual: SlidingSums[Cell, int] = SlidingSums(window, 20)
        self._past: SlidingSums[Cell, int] = SlidingSums(DAY, 24)
        self._is_worse = False
        # As of the last ``judge``; None if too few are known.
        self.report: EndingsReport | None = None

    def begin_again(self) -> "Endings":
        """The same without a window: the past goes on, since it is what tells a change."""
        again = Endings(self._seconds, self._baseline)
        again._past = self._past
        return again

    def finished(self, at: float, temperature: str, requests: Iterable[FinishedRequest]) -> None:
        """Adds requests that finished before ``at``, where the plug-in tells how they end."""
        counts: dict[Cell, int] = {}
        for request in requests:
            if request.ending is not None:
                cell = temperature, request.ending
                counts[cell] = counts.get(cell, 0) + 1

        if not counts:
            return
        self._recent.add(at, counts)
        if not self._is_worse:
            self._usual.add(at, counts)
            self._past.add(at, counts)

    def mark(self, at: float) -> None:
        """Forgets what has left the windows that end at ``at``."""
        self._recent.drop(at)
        self._usual.drop(at)
        if not self._is_worse:
            self._past.drop(at)

    def judge(self, min_requests: int) -> None:
        """Makes the report, unless the window has fewer than ``min_requests`` requests."""
        recent = self._recent.sums
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
        self._is_worse = self.report.is_worse

    def _change(self, ending: Ending, min_requests: int) -> EndingChange | None:
        """By the baseline, if that has the window's temperatures; else by the pod's past."""
        recent = self._recent.sums
        by_baseline = compare(
            ending, recent, self._baseline, Reference.BASELINE, least=min_requests
        )
        if by_baseline is not None:
            return by_baseline

        return compare(
            ending, recent, self._before_window(), Reference.PAST, least=_PAST * min_requests
        )

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
    ending: Ending, recent: Counts, before: Counts, reference: Reference, *, least: int
) -> EndingChange | None:
    """Requests that finished recently and those of the reference, at the same temperatures.

    None unless the reference has at the ``least`` so many requests, at the temperatures of at least
    half of the recent ones.
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

    bad = 0
    expected = 0.0
    unchanged = 0.0
    variance = 0.0
    for temperature in shared:
        count = requests[temperature]
        other = references[temperature]
        ended = recent.get((temperature, ending), 0)
        ended_before = before.get((temperature, ending), 0)

        bad += ended
        expected += count * ended_before / other
        unchanged += ended * ended_before / other
        # With one more that ends so, and one that does not: of few, none is no certainty.
        share = (ended + ended_before + 1) / (count + other + 2)
        variance += count**2 * share * (1 - share) * (1 / count + 1 / other)

    return EndingChange(
        ending=ending,
        share=bad / compared,
        usual=expected / compared,
        error=sqrt(variance) / compared,
        odds_ratio=_odds_ratio(bad, expected, unchanged),
        requests=compared,
        reference=reference,
    )


def _odds_ratio(bad: float, expected: float, unchanged: float) -> float:
    """The common odds ratio over temperatures (Mantel and Haenszel, 1959).

    With a bad ones and b others at a temperature where the reference's share is u, it is the sum of
    a (1 - u) / the sum of b u. So a temperature at which nearly all end badly anyway hides no rise
    at another one, as it would in the odds of all together. ``bad`` is the sum of a, ``expected``
    that of (a + b) u, ``unchanged`` that of a u.
    """
    risen = bad - unchanged
    usual = expected - unchanged
    if usual <= 0:
        return inf if risen > 0 else 1.0
    return risen / usual


def _count(counts: Counts, wanted: Ending) -> int:
    return sum(count for (_, ending), count in counts.items() if ending == wanted)


def _by_temperature(counts: Counts) -> dict[str, int]:
    """All requests by temperature."""
    requests: dict[str, int] = {}
    for (temperature, _), count in counts.items():
        requests[temperature] = requests.get(temperature, 0) + count
    return requests
