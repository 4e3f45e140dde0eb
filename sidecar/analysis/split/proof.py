"""How a life has grown beside vLLM's counters, where its totals alone do not tell."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from sidecar.analysis.split.comparison import Comparison, Polls

# seconds over which growth is compared, too, since a long exact life hides a late fault
_SPAN: Final = 300.0
_MARK_EVERY: Final = 60.0
# A life whose totals are too high is confirmed by its growth alone once that has agreed over so
# many spans in a row, each of them with enough drafts or tokens.
_SPANS: Final = 3


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float
    comparison: Comparison


class Marks:
    """Earlier cuts that agreed, a few and at intervals: growth is compared since the oldest."""

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()  # the oldest first
        # The cut of the last poll, which becomes a mark once vLLM's API server has caught up.
        self._next: Comparison | None = None

    @property
    def are_empty(self) -> bool:
        """Whether there is no growth to compare."""
        return not self._marks

    def clear(self) -> None:
        """Forgets all."""
        self._marks.clear()
        self._next = None

    def begin_at(self, at: float, comparison: Comparison) -> None:
        """Makes this the only mark."""
        self._marks = deque([_Mark(at, comparison)])

    def growth_of(self, comparison: Comparison) -> Comparison | None:
        """The growth of a cut since the oldest mark; None without one."""
        if not self._marks:
            return None
        return comparison.since(self._marks[0].comparison)

    def note(self, comparison: Comparison) -> None:
        """A cut that becomes a mark at the next poll."""
        self._next = comparison

    def take(self, at: float, comparison: Comparison, *, is_proven: bool) -> None:
        """Marks the cut of the last poll, now that vLLM's API server has counted all of it.

        ``comparison`` is the present poll's. Only a proven life has more than the first mark.
        """
        if self._marks and self._marks[0].comparison.total.keys() != comparison.total.keys():
            self._marks.clear()

        following = self._next
        self._next = None
        is_alike = following is not None and following.total.keys() == comparison.total.keys()
        if following is not None and is_alike and self._is_due(at, is_proven=is_proven):
            self._marks.append(_Mark(at, replace(following, most=comparison.most)))

        while len(self._marks) > 1 and at - self._marks[1].at >= _SPAN:
            self._marks.popleft()

    def follow_clock(self, at: float) -> None:
        """If the clock was set back, the marks are as of now."""
        if self._marks and self._marks[-1].at > at:
            self._marks = deque(replace(mark, at=at) for mark in self._marks)

    def _is_due(self, at: float, *, is_proven: bool) -> bool:
        if not self._marks:
            return True
        return is_proven and at - self._marks[-1].at >= _MARK_EVERY


class GrowthProof:
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
        self._first: Comparison | None = None  # the start of the first span
        self._start: Comparison | None = None  # of the present span
        self._spans = 0  # those before it that agreed
        self._latest: Comparison | None = None  # of the last poll, if its least was known

    @property
    def is_complete(self) -> bool:
        """Whether enough spans in a row have agreed."""
        return self._spans >= (1 if self.is_of_known else _SPANS)

    @property
    def proven_since(self) -> Comparison | None:
        """The cut since which the growth has agreed, once that is enough; None before."""
        return self._first if self.is_complete else None

    def begin_again(self) -> None:
        """Forgets all spans; the next one is from the next cut on."""
        self._begin_at(None)
        self._latest = None

    def take(self, comparison: Comparison, polls: Polls, tolerance: float) -> None:
        """Takes in the cut of a poll, once vLLM's API server has counted all of it.

        That is at the next poll, or now if nothing has changed for a while.
        """
        before = self._latest
        self._latest = comparison if polls.is_least_known else None

        if before is not None and before.total.keys() == comparison.total.keys():
            self._compare(replace(before, most=comparison.most), tolerance)
        if polls.are_at_rest:
            self._compare(replace(comparison, least=comparison.most), tolerance)

    def _begin_at(self, start: Comparison | None) -> None:
        self._first = start
        self._start = start
        self._spans = 0

    def _compare(self, comparison: Comparison, tolerance: float) -> None:
        start = self._start
        if start is None or start.total.keys() != comparison.total.keys():
            self._begin_at(comparison)
            return

        growth = comparison.since(start)
        if growth.is_outside(0.0):
            self._begin_at(comparison)
        elif growth.is_sharp(tolerance) or (self.is_of_known and growth.is_well_known):
            self._spans += 1
            self._start = comparison
        elif comparison.width < start.width / 2:  # a span from within a burst would take long
            self._start = comparison
