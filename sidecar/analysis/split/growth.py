"""How much a life has told, beside how much vLLM has counted in the same time.

Totals may be of different times: vLLM's counters may have begun before the life or after it. Their
growth is of the same time, but for a report at each end: what was told at a poll's moment is
between the report before the last one, since an API server counts later than its engine, and the
first one that was made after the poll. How often vLLM is polled makes no difference.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from sidecar.analysis.split.comparison import Comparison, Totals
from sidecar.analysis.split.standing import Event, Standing

_SPAN: Final = 300.0  # seconds over which growth is compared, at most, for a life that counts
_MARK_EVERY: Final = 60.0
_MOST_MARKS: Final = 64
ENOUGH: Final = 100  # drafts, or tokens where nothing is drafted, that vLLM counted in a growth
# Of the growth, how much may be unknown where it confirms a life. Without a limit, the reports at
# both ends let a neighbour at half or twice the rate agree for a while.
_UNKNOWN: Final = 0.5
# Seconds for which the growth may be outside, and after which the next report is overdue.
PATIENCE: Final = 30.0
# Seconds without a count or a report after which nothing is under way: two periods of the plug-in's
# reports, since it makes one only after a step, and at once where it was the last one.
_QUIET_AFTER: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Mark:
    """A poll at ``at``, and what was told by then."""

    at: float
    compared: Comparison


class Growth:
    """Compares what one life has told with vLLM's counters at each good poll."""

    def __init__(self, told: Totals | None = None) -> None:
        """``told`` is what the life has told so far; None: unknown."""
        # The newest poll of which is known what had been told by then.
        self.now: Comparison | None = None
        # The last poll, beside what has been told so far: of what is under way, it lacks some.
        self.so_far: Comparison | None = None
        # Whether nothing is under way: for a while, vLLM counted nothing, and no report came.
        self.is_quiet = False
        self.ratio: float | None = None  # of the number that was farthest off, when it last was

        self._told = self._told_before = told  # in the last report, and in the one before
        self._is_new = False  # whether a report has come since the last poll
        self._reported_at: float | None = None  # the first poll at which the last report was there
        self._polled_at = 0.0
        self._still_since = 0.0  # the first poll since which nothing has moved

        self._open: _Mark | None = None  # a poll after which no report was made yet
        self._closed: _Mark | None = None  # the latest one after which one was
        self._marks: deque[_Mark] = deque()  # the oldest first
        self._off_since: float | None = None  # the first poll at which the growth was outside

    def restart_counters(self) -> None:
        """VLLM's counters have started again at 0 while the life went on."""
        self.now = self.so_far = None
        self.begin_again()

    def begin_again(self) -> None:
        """What has grown until now confirms nothing."""
        self._open = self._closed = None
        self._marks.clear()
        self._off_since = None

    def report(self, at: float, told: Totals) -> None:
        """Takes in a whole report that was made ``at``, in Unix seconds."""
        before = self._open
        # Times are not trusted: a sender that is always late would never be compared.
        if before is not None and (at >= before.at or self._polled_at - before.at >= PATIENCE):
            self._closed = replace(before, compared=replace(before.compared, most=told))
            self._open = None

        self._told_before = self._told
        self._told = told
        self._is_new = True

    def poll(
        self,
        at: float,
        counted: Totals,
        tolerance: float,
        *,
        is_connected: bool = True,
        standing: Standing = Standing.COUNTS,
    ) -> Event | None:
        """Takes in what vLLM has ``counted`` at a good poll; returns what the growth says.

        None if it says nothing. The two may differ by the fraction ``tolerance``. ``is_connected``:
        reports may still come. ``standing`` is the life's; one that waits agrees only once so much
        is known of its growth that it is not a neighbour's.
        """
        self._follow_clock(at)
        is_new = self._is_new
        self._is_new = False
        self._polled_at = at
        if is_new or self._reported_at is None:
            self._reported_at = at
        if self._told is None:
            return None

        before = self.so_far
        self.so_far = Comparison(counted, self._told, self._told)
        if is_new or before != self.so_far:
            self._still_since = at
        self.is_quiet = at - self._still_since >= _QUIET_AFTER
        is_late = at - self._reported_at >= PATIENCE or not is_connected
        closed = self._closed
        self._note_mark(closed)
        first = self._first(self._told)
        if is_late:  # the last report should have all there is
            self.now = self.so_far
            if self._marks:
                self._open = _Mark(at, self.so_far)
        elif closed is not None:
            self.now = closed.compared
        if self._open is None and self._told_before is not None:
            self._open = _Mark(at, Comparison(counted, self._told_before, self._told_before))

        event = None
        if first is not None and self.now is not None:
            growth = self.now.since(first)
            if growth.is_outside(tolerance):
                event = self._stray(growth, first, at, tolerance, is_late=is_late)
            else:
                event = self._agree(growth, standing, is_new=is_new)
        self._drop_marks(at, standing)
        return event

    def _first(self, told: Totals) -> Comparison | None:
        """Since when growth is compared.

        Of one that has fallen silent at once, since its first poll.
        """
        if self._marks:
            return self._marks[0].compared
        return replace(self._open.compared, most=told) if self._open is not None else None

    def _agree(self, growth: Comparison, standing: Standing, *, is_new: bool) -> Event | None:
        was_off = self._off_since is not None
        self._off_since = None
        if _is_enough(growth, standing):
            return Event.AGREED
        return Event.CAUGHT_UP if is_new and was_off else None

    def _stray(
        self, growth: Comparison, first: Comparison, at: float, tolerance: float, *, is_late: bool
    ) -> Event | None:
        if self._off_since is None:
            self._off_since = at
        self.ratio = growth.farthest
        if at - self._off_since < PATIENCE:
            return None

        was_right = self._closed is None or not self._closed.compared.since(first).is_outside(
            tolerance
        )
        is_missing = is_late and was_right and not growth.is_above(tolerance)
        return Event.FELL_SILENT if is_missing else Event.STRAYED

    # Marks

    def _note_mark(self, closed: _Mark | None) -> None:
        """Keeps one a minute.

        One after which it was long until the next report gives way to one that says far more.
        """
        if closed is None:
            return

        last = self._marks[-1] if self._marks else None
        if last is not None and closed.at - last.at < _MARK_EVERY:
            if 2 * closed.compared.unknown >= last.compared.unknown:
                return
            self._marks.pop()
        self._marks.append(closed)

    def _drop_marks(self, at: float, standing: Standing) -> None:
        """Keeps growth to five minutes or, of a life that does not count, to what is enough.

        Of what takes long, every second mark will do.
        """
        while len(self._marks) > 1 and at - self._marks[1].at >= _SPAN:
            grown = self.now.since(self._marks[1].compared) if self.now is not None else None
            has_enough = grown is not None and _is_enough(grown, standing)
            if standing is not Standing.COUNTS and not has_enough:
                break
            self._marks.popleft()

        if len(self._marks) > _MOST_MARKS:
            self._marks = deque(list(self._marks)[::2])

    def _follow_clock(self, at: float) -> None:
        """If the clock was set back, what happened before is as of now."""
        if at >= self._polled_at:
            return
        if self._reported_at is not None:
            self._reported_at = at
        if self._off_since is not None:
            self._off_since = at

        self._still_since = at
        self._open = self._closed = None
        self._marks = deque(replace(mark, at=at) for mark in self._marks)


def _is_enough(growth: Comparison, standing: Standing) -> bool:
    """Whether it tells of a life that has this ``standing``, if it agrees."""
    is_certain = standing is not Standing.WAITS or growth.is_known_within(_UNKNOWN)
    return growth.traffic >= ENOUGH and is_certain
