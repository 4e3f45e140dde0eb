"""Whether what a life of the plug-in reports is what vLLM itself counted, both since the engine started."""

from enum import StrEnum
from typing import Final

from sidecar.requests.tally import Tally

_PATIENCE: Final = 30.0  # seconds for which the plug-in, which reports once a second, or vLLM may be behind
_MOST_UNREPORTED: Final = 300  # with many requests and long steps, a report may take a minute
_COMPARED: Final = ("drafts", "draft_tokens", "accepted_tokens")


class Standing(StrEnum):
    """How a life's latest cut compares with vLLM's counters."""

    WAITS = "waits"  # the next poll or report will tell; until then the last confirmed cut holds
    AGREES = "agrees"
    DIFFERS = "differs"


class Trust:
    """Compares the cuts of one life with vLLM's counters at each good poll.

    The two are never from the same moment. A cut has at least what vLLM had counted when the report before it was
    complete, since the engine counts before its API server does, and at most what vLLM has counted once the API server
    has caught up.
    """

    def __init__(self) -> None:
        self.standing = Standing.WAITS
        self.ratio: float | None = None  # draft tokens of the cut / vLLM's, or see ``_farthest``; None: not compared
        self._reports = 0  # as of the last poll
        self._is_confirmed = False  # whether the latest cut has agreed at a poll
        self._counted: Tally | None = None  # by vLLM, at the last poll
        self._before_latest: Tally | None = None  # by vLLM, at the last poll before the latest cut was there
        self._least: Tally | None = None  # by vLLM, at the last poll before the cut before that one; None: unknown
        self._off_since: float | None = None  # the first poll at which one was behind the other
        self._unreported = 0  # polls since the latest cut at which vLLM had drafted more than at the poll before

    def compare(self, at: float, reports: int, total: Tally, counted: Tally | None, tolerance: float) -> None:
        """Takes in a good poll at ``at``: the latest cut's ``total``, after ``reports`` reports, and vLLM's counters.

        ``counted`` is None if vLLM does not export them: nothing contradicts the cut then. The two may differ by the
        fraction ``tolerance``.
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
        is_short = self._least is not None and _is_short(total, self._least, tolerance)
        # A confirmed cut falls behind while no report comes; so may the first one, of which nobody knows how old it is.
        may_be_old = self._is_confirmed or self._least is None
        is_off = _exceeds(total, counted, tolerance) or (may_be_old and _is_short(total, counted, tolerance))
        is_silent = self._unreported > _MOST_UNREPORTED
        self._off_since = (at if self._off_since is None else self._off_since) if is_off else None
        if is_short or is_silent or (self._off_since is not None and at - self._off_since > _PATIENCE):
            self.standing = Standing.DIFFERS
            self.ratio = _farthest(total, self._least if is_short and self._least is not None else counted)
        elif not is_off:
            self.standing, self._is_confirmed = Standing.AGREES, True
            self.ratio = _ratio(total, self._within(total, counted))
        else:
            self.standing = Standing.AGREES if self._is_confirmed else Standing.WAITS

    def _within(self, total: Tally, counted: Tally) -> Tally:
        """What vLLM may have counted at the moment of the cut: ``total`` itself if that lies between the two polls."""
        least = self._least if self._least is not None else counted
        return total if least.draft_tokens <= total.draft_tokens <= counted.draft_tokens else counted


def _is_short(total: Tally, counted: Tally, tolerance: float) -> bool:
    return any(getattr(total, name) < (1 - tolerance) * getattr(counted, name) for name in _COMPARED)


def _exceeds(total: Tally, counted: Tally, tolerance: float) -> bool:
    return any(getattr(total, name) > (1 + tolerance) * getattr(counted, name) for name in _COMPARED)


def _farthest(total: Tally, counted: Tally) -> float | None:
    """The ratio of whichever number differs most, so that a coverage near 1 never hides a difference."""
    pairs = [(getattr(total, name), getattr(counted, name)) for name in _COMPARED]
    ratios = [mine / theirs for mine, theirs in pairs if theirs > 0]
    return max(ratios, key=lambda ratio: abs(ratio - 1), default=None)


def _ratio(total: Tally, counted: Tally) -> float | None:
    return total.draft_tokens / counted.draft_tokens if counted.draft_tokens > 0 else None
