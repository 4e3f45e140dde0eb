"""How much a life has told, beside how much vLLM has counted in the same time.

Totals may be of different times: vLLM's counters may have begun before the life or after it. Their
growth is of the same time, but for a report at each end: what was told at a poll's moment is
between the report before the last one, since an API server counts later than its engine, and the
first one that was made after the poll. How often vLLM is polled makes no difference.

If the API server keeps up, it is at least what the last report before the poll has. A life that
waits may agree by that, and so sooner; nothing strays by it, since the API server may not keep up.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from sidecar.analysis.split.comparison import Comparison, Totals
from sidecar.analysis.split.standing import Event, Standing

# Seconds over which growth is compared, for a life that counts; and up to a mark more.
_SPAN: Final = 300.0
_MARK_EVERY: Final = 60.0
_MOST_MARKS: Final = 64
ENOUGH: Final = 100  # drafts, or tokens where nothing is drafted, that vLLM counted in a growth
# Of the growth, how much may be unknown where it confirms a life. Without a limit, the reports at
# both ends let a neighbour at half or twice the rate agree for a while.
_UNKNOWN: Final = 0.5
# Reports over which one that waits agrees if the API server keeps up. Over fewer, what that server
# has not counted yet is too large a part.
_SOON: Final = 4
# Seconds for which the growth may be outside, and after which the next report is overdue.
PATIENCE: Final = 30.0
# Seconds without a count or a report after which an engine that runs nothing has told all: it makes
# a report at once when it becomes idle, and the API server may count it a little later.
_QUIET_AFTER: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Mark:
    """A poll at ``at``, and what was told by then: ``latest`` in the last report before it.

    ``reports`` are those that had come.
    """

    at: float
    compared: Comparison
    latest: Totals
    reports: int

    @property
    def narrow(self) -> Comparison:
        """The same, if the API server keeps up with its engine."""
        return replace(self.compared, least=self.latest)


class Growth:
    """Compares what one life has told with vLLM's counters at each good poll."""

    def __init__(self, told: Totals | None = None) -> None:
        """``told`` is what the life has told so far; None: unknown."""
        # The last poll, beside what has been told so far: of what is under way, it lacks some.
        self.so_far: Comparison | None = None
        self.ratio: float | None = None  # of the number that was farthest off, when it last was

        self._told = self._told_before = told  # in the last report, and in the one before
        self._made_at = 0.0  # when the last one was made
        self._reports = 0
        self._is_new = False  # whether a report has come since the last poll
        self._reported_at: float | None = None  # the first poll at which the last report was there
        self._polled_at = 0.0
        self._still_since = 0.0  # the first poll since which nothing has moved

        self._open: _Mark | None = None  # a poll after which no report was made yet
        self._closed: _Mark | None = None  # the latest one after which one was
        self._newest: _Mark | None = None  # the same, or a later one by which all had been told
        self._marks: deque[_Mark] = deque()  # the oldest first
        self._off_since: float | None = None  # the first poll at which the growth was outside
        # Whether it never was, also by the last report before each poll.
        self._is_in_step = True

    @property
    def now(self) -> Comparison | None:
        """The newest poll of which is known what had been told by then."""
        return self._newest.compared if self._newest is not None else None

    def restart_counters(self) -> None:
        """VLLM's counters have started again at 0 while the life went on."""
        self._newest = self.so_far = None
        self.begin_again()

    def begin_again(self) -> None:
        """What has grown until now confirms nothing."""
        self._open = self._closed = None
        self._marks.clear()
        self._off_since = None
        self._is_in_step = True

    def report(self, at: float, told: Totals) -> None:
        """Takes in a whole report that was made ``at``, in Unix seconds."""
        before = self._open
        # Times are not trusted: a sender that is always late would never be compared.
        if before is not None and (at >= before.at or self._polled_at - before.at >= PATIENCE):
            self._closed = replace(before, compared=replace(before.compared, most=told))
            self._open = None

        self._told_before = self._told
        self._told = told
        self._made_at = at
        self._reports += 1
        self._is_new = True

    def poll(
        self,
        at: float,
        counted: Totals,
        tolerance: float,
        *,
        is_connected: bool = True,
        is_idle: bool = False,
        standing: Standing = Standing.COUNTS,
    ) -> Event | None:
        """Takes in what vLLM has ``counted`` at a good poll; returns what the growth says.

        None if it says nothing. The two may differ by the fraction ``tolerance``. ``is_connected``:
        reports may still come. ``is_idle``: vLLM runs nothing, and nothing waits. ``standing`` is
        the life's; one that waits agrees only once so much is known of its growth that it is not a
        neighbour's.
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
        if is_new or before != self.so_far or not is_idle:
            self._still_since = at
        is_quiet = at - self._still_since >= _QUIET_AFTER
        is_late = at - self._reported_at >= PATIENCE or not is_connected
        has_all = is_quiet or is_late  # the last report should have all there is
        poll = _Mark(at, self.so_far, self._told, self._reports)
        first = self._take_poll(poll, has_all=has_all)

        event = None
        if first is not None and self._newest is not None:
            growth = self._newest.compared.since(first.compared)
            if growth.is_outside(tolerance):
                event = self._stray(growth, first.compared, at, tolerance, has_all=has_all)
            else:
                growth = self._by_last_reports(first, self._newest, tolerance, standing) or growth
                event = self._agree(growth, standing, is_new=is_new)
        self._drop_marks(at, standing)
        return event

    def _take_poll(self, poll: _Mark, *, has_all: bool) -> _Mark | None:
        """Takes in a poll; returns the one since which growth is compared.

        That of a life that fell silent at once is compared since its first poll.
        """
        self._note_mark(self._closed)
        first, told = self._open, poll.compared.most
        if self._marks:
            first = self._marks[0]
        elif first is not None:
            first = replace(first, compared=replace(first.compared, most=told))

        if has_all:
            self._newest = poll
            if self._marks:
                self._open = poll
        elif self._closed is not None:
            self._newest = self._closed
        if self._open is None and self._told_before is not None:
            before = self._told_before
            latest = told if self._made_at <= poll.at else before
            compared = replace(poll.compared, least=before, most=before)
            self._open = replace(poll, compared=compared, latest=latest)
        return first

    def _by_last_reports(
        self, first: _Mark, last: _Mark, tolerance: float, standing: Standing
    ) -> Comparison | None:
        """The growth of one that waits, if the API server keeps up; None if it may not.

        One that was ever outside is no surer by what it does for a moment.
        """
        if standing is not Standing.WAITS:
            return None
        growth = last.narrow.since(first.narrow)
        self._is_in_step &= not growth.is_outside(tolerance)
        is_enough = last.reports - first.reports >= _SOON
        return growth if self._is_in_step and is_enough else None

    def _agree(self, growth: Comparison, standing: Standing, *, is_new: bool) -> Event | None:
        was_off = self._off_since is not None
        self._off_since = None
        if _is_enough(growth, standing):
            return Event.AGREED
        return Event.CAUGHT_UP if is_new and was_off else None

    def _stray(
        self, growth: Comparison, first: Comparison, at: float, tolerance: float, *, has_all: bool
    ) -> Event | None:
        self._is_in_step = False
        if self._off_since is None:
            self._off_since = at
        self.ratio = growth.farthest
        if at - self._off_since < PATIENCE:
            return None

        was_right = self._closed is None or not self._closed.compared.since(first).is_outside(
            tolerance
        )
        is_missing = has_all and was_right and not growth.is_above(tolerance)
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
