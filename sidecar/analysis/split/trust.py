"""Whether what a life of the plug-in reports is what vLLM itself counted.

Both are since the engine started.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.requests.tally import NOTHING, Tally

# seconds for which the plug-in, which reports once a second, or vLLM may be behind
_PATIENCE: Final = 30.0
_MOST_UNREPORTED: Final = 300  # with many requests and long steps, a report may take a minute
# seconds over which growth is compared, too, since a long exact life hides a late fault
_SPAN: Final = 300.0
_MARK_EVERY: Final = 60.0
_COMPARED: Final = ("drafts", "draft_tokens", "accepted_tokens")


class Standing(StrEnum):
    """How a life's latest cut compares with vLLM's counters."""

    WAITS = "waits"  # the next poll or report will tell; until then the last confirmed cut holds
    AGREES = "agrees"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class _Mark:
    """An earlier cut that agreed: its total, and what vLLM had counted at its moment.

    vLLM had counted ``least`` at least and ``most`` at most.
    """

    at: float
    total: Tally
    least: Tally
    most: Tally


class Trust:
    """Compares the cuts of one life with vLLM's counters at each good poll.

    The two are never from the same moment. A cut has at least what vLLM had counted when the report
    before it was complete, since the engine counts before its API server does, and at most what
    vLLM has counted once the API server has caught up.
    """

    def __init__(self) -> None:
        self.standing = Standing.WAITS
        # draft tokens of the cut / vLLM's, or see ``_farthest``; None: not compared
        self.ratio: float | None = None
        self._reports = 0  # as of the last poll
        self._is_confirmed = False  # whether the latest cut has agreed at a poll
        self._counted: Tally | None = None  # by vLLM, at the last poll
        # by vLLM, at the last poll before the latest cut was there
        self._before_latest: Tally | None = None
        # by vLLM, at the last poll before the cut before that one; None: unknown
        self._least: Tally | None = None
        self._off_since: float | None = None  # the first poll at which one was behind the other
        self._marks: deque[_Mark] = deque()  # a few, the oldest first
        # The total and the least of the cut that agreed at the last poll.
        self._agreed: tuple[Tally, Tally] | None = None
        # polls since the latest cut at which vLLM had drafted more than at the poll before
        self._unreported = 0

    def compare(
        self, at: float, reports: int, total: Tally, counted: Tally | None, tolerance: float
    ) -> None:
        """Takes in a good poll at ``at``: the latest cut's ``total``, and vLLM's counters.

        The cut came after ``reports`` reports. ``counted`` is None if vLLM does not export its
        counters: nothing contradicts the cut then. The two may differ by the fraction
        ``tolerance``.
        """
        before, self._counted = self._counted, counted
        if counted is None:
            self.standing, self.ratio = Standing.AGREES, None
            return

        self._unreported += before is not None and counted.drafts > before.drafts
        if reports != self._reports:
            self._unreported = 0
            self._least = before if reports > self._reports + 1 else self._before_latest
            self._before_latest, self._reports, self._is_confirmed = before, reports, False

        self._mark(at, counted)
        off = self._off(total, counted, tolerance)
        if off is None:
            self._off_since = None
        elif self._off_since is None:
            self._off_since = at

        is_silent = self._unreported > _MOST_UNREPORTED
        # Not at once: after a stall of the sidecar, a poll may come before reports that are older
        # than its page.
        if is_silent or (self._off_since is not None and at - self._off_since > _PATIENCE):
            self.standing, self.ratio = Standing.DIFFERS, _farthest(*(off or (total, counted)))
        elif off is None:
            self.standing, self._is_confirmed = Standing.AGREES, True
            within = self._within(total, counted).draft_tokens
            self.ratio = total.draft_tokens / within if within > 0 else None
            self._agreed = None if self._least is None else (total, self._least)
        else:
            self.standing = Standing.AGREES if self._is_confirmed else Standing.WAITS

    def _off(self, total: Tally, counted: Tally, tolerance: float) -> tuple[Tally, Tally] | None:
        """What the plug-in and vLLM counted, if that differs; else None.

        Both are since the start or since a mark.
        """
        # A confirmed cut falls behind while no report comes; so may the first one, of which nobody
        # knows how old it is.
        least = counted if self._is_confirmed or self._least is None else self._least
        off = _outside(total, least, counted, tolerance)
        if off is not None or not self._marks:
            return off

        mark = self._marks[0]
        least = NOTHING if self._least is None else self._least - mark.most
        return _outside(total - mark.total, least, counted - mark.least, tolerance)

    def _mark(self, at: float, counted: Tally) -> None:
        """Marks the cut of the last poll if it agreed.

        By now, vLLM's API server has counted all of it.
        """
        agreed, self._agreed = self._agreed, None
        if agreed is not None and (not self._marks or at - self._marks[-1].at >= _MARK_EVERY):
            self._marks.append(_Mark(at, *agreed, most=counted))
        while len(self._marks) > 1 and at - self._marks[1].at >= _SPAN:
            self._marks.popleft()

    def _within(self, total: Tally, counted: Tally) -> Tally:
        """What vLLM may have counted at the moment of the cut.

        It is ``total`` itself if that lies between the two polls.
        """
        least = self._least if self._least is not None else counted
        if least.draft_tokens <= total.draft_tokens <= counted.draft_tokens:
            return total
        return counted


def _outside(
    total: Tally, least: Tally, most: Tally, tolerance: float
) -> tuple[Tally, Tally] | None:
    """``total`` and the one of the other two that it is beyond in any number.

    None if it lies between them.
    """
    if any(getattr(total, name) < (1 - tolerance) * getattr(least, name) for name in _COMPARED):
        return total, least
    if any(getattr(total, name) > (1 + tolerance) * getattr(most, name) for name in _COMPARED):
        return total, most
    return None


def _farthest(total: Tally, counted: Tally) -> float | None:
    """The ratio of whichever number differs most.

    So a coverage near 1 never hides a difference.
    """
    pairs = [(getattr(total, name), getattr(counted, name)) for name in _COMPARED]
    ratios = [mine / theirs for mine, theirs in pairs if theirs > 0]
    return max(ratios, key=lambda ratio: abs(ratio - 1), default=None)
