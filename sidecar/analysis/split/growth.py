"""How much a life has told, beside how much vLLM has counted in the same time.

Totals may be of different times: vLLM's counters may have begun before the life or after it. Their
growth is of the same time, but for one report at each end: the engine counts before its API server
does, and tells it a second later.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from sidecar.analysis.split.comparison import Comparison, Totals
from sidecar.analysis.split.standing import Event

_SPAN: Final = 300.0  # seconds over which growth is compared, at most, for a life that counts
_MARK_EVERY: Final = 60.0
ENOUGH: Final = 100  # drafts, or tokens where nothing is drafted, that vLLM counted in a growth
# How far growth that confirms a life may be from the middle of what vLLM may have counted. Without
# it, the slack at both ends lets a neighbour at half or twice the rate agree for a while.
_NEAR: Final = 0.25
# Seconds for which the growth may be outside, and after which the next report is overdue.
PATIENCE: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Mark:
    """An earlier cut, since which growth is compared."""

    at: float
    cut: Comparison
    is_known: bool = True  # what vLLM had counted at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a good poll at ``at`` gives to compare of a life.

    That is the ``total`` of its latest cut, which came after ``reports`` reports, and what vLLM has
    ``counted``. ``counts``: it is part of the split.
    """

    at: float
    reports: int
    total: Totals
    counted: Totals
    is_connected: bool
    counts: bool


class Growth:
    """Compares the cuts of one life with vLLM's counters at each good poll."""

    def __init__(self, start: Totals | None = None) -> None:
        """``start`` is what vLLM had counted before the life began; None: unknown."""
        self.now: Comparison | None = None  # the latest cut beside vLLM's counters
        self.ratio: float | None = None  # of the number that was farthest off, when it last was
        # Whether growth that agreed is so near to vLLM's that it is not a neighbour's.
        self.is_near = False

        self._start = start
        self._marks: deque[_Mark] = deque()  # the oldest first
        self._is_last_open = False  # whether vLLM's API server may yet have to count the last one's

        self.reports = 0  # of the life, as of the last poll
        # The first poll at which the latest cut was there.
        self._reported_at: float | None = None
        self._counted: Totals | None = None  # at the last poll
        # At the last poll before the latest cut was there, and before the one before that.
        self._before_latest: Totals | None = None
        self._least: Totals | None = None
        self._off_since: float | None = None  # the first poll at which the growth was outside
        self._was_late = False  # at the last poll

    def restart_counters(self) -> None:
        """VLLM's counters have started again at 0 while the life went on."""
        self._start = self.now = None
        self._marks.clear()
        self._counted = self._before_latest = self._least = None
        self._off_since = None

    def reconnect(self) -> None:
        """The next report is on a new connection, so later than the last poll."""
        self._before_latest = self._counted

    def begin_again(self) -> None:
        """What has grown until now confirms nothing."""
        self._start = None
        self._marks.clear()
        self._off_since = None

    def take(self, told: Told, tolerance: float) -> Event | None:
        """Takes in a good poll; returns what the growth says, None if nothing.

        The two may differ by the fraction ``tolerance``.
        """
        self._follow_clock(told.at)
        is_new = self._note_poll(told)
        was_late = self._was_late
        self._was_late = is_late = self._is_late(told)
        now = self._beside(told, is_late=is_late)
        settled = now if is_late or was_late else self._settled(told.counted)
        self.now = now

        self._close_last(told.counted)
        self._note_start(told)
        event = None
        if settled is not None:
            event = self._find(settled, told.at, tolerance, is_new=is_new)
        if is_new:
            self._note_mark(told.at, now)
        self._drop_marks(told.at, now, is_bounded=told.counts)
        return event

    def _note_poll(self, told: Told) -> bool:
        """Whether the life has a new cut."""
        before = self._counted
        self._counted = told.counted
        if self._reported_at is None:
            self._reported_at = told.at
        if told.reports == self.reports:
            return False

        is_next = told.reports == self.reports + 1
        self._least = self._before_latest if is_next else before
        self._before_latest = before
        self.reports = told.reports
        self._reported_at = told.at
        return True

    def _is_late(self, told: Told) -> bool:
        """Whether no report has come for so long that the cut should have all there is."""
        reported_at = self._reported_at if self._reported_at is not None else told.at
        return told.at - reported_at >= PATIENCE or not told.is_connected

    def _beside(self, told: Told, *, is_late: bool) -> Comparison:
        """The cut beside what vLLM has counted by now.

        It has at least what vLLM had counted before the cut before it was there.
        """
        least = told.counted if is_late else self._least or {}
        names = told.total.keys() & told.counted.keys()
        return Comparison(
            total={name: told.total[name] for name in names},
            least={name: least.get(name, 0) for name in names},
            most={name: told.counted[name] for name in names},
        )

    def _settled(self, counted: Totals) -> Comparison | None:
        """The cut of the last poll: by now vLLM's API server has counted all of it."""
        before = self.now
        if before is None or not before.total.keys() <= counted.keys():
            return None
        return replace(before, most={name: counted[name] for name in before.total})

    def _find(self, cut: Comparison, at: float, tolerance: float, *, is_new: bool) -> Event | None:
        if not self._marks:
            return None

        growth = cut.since(self._marks[0].cut)
        if not growth.is_outside(tolerance):
            was_off = self._off_since is not None
            self._off_since = None
            self.is_near = growth.is_near_middle(_NEAR)
            if self._marks[0].is_known and growth.counted >= ENOUGH:
                return Event.AGREED
            return Event.CAUGHT_UP if is_new and was_off else None

        if self._off_since is None:
            self._off_since = at
        self.ratio = growth.farthest
        if at - self._off_since < PATIENCE:
            return None

        at_its_moment = replace(cut, least=self._least_of(cut)).since(self._marks[0].cut)
        return Event.STRAYED if at_its_moment.is_outside(tolerance) else Event.FELL_SILENT

    def _least_of(self, now: Comparison) -> Totals:
        """What vLLM had counted at least at the moment of the cut."""
        least = self._least or {}
        return {name: least.get(name, 0) for name in now.total}

    # Marks

    def _note_start(self, told: Told) -> None:
        """The first mark is the life's start: at the first poll, since that has all before it."""
        if self._start is None:
            return
        nothing = dict.fromkeys(self._start, 0)
        most = {name: told.counted.get(name, 0) for name in self._start}
        self._marks.append(_Mark(told.at, Comparison(nothing, self._start, most)))
        self._start = None

    def _close_last(self, counted: Totals) -> None:
        """By the next poll, vLLM's API server has counted all of the last mark's cut."""
        if self._is_last_open and self._marks:
            last = self._marks[-1]
            most = {name: counted.get(name, 0) for name in last.cut.total}
            self._marks[-1] = replace(last, cut=replace(last.cut, most=most))
        self._is_last_open = False

    def _note_mark(self, at: float, now: Comparison) -> None:
        is_known = self._least is not None
        if self._marks and is_known and not self._marks[0].is_known:
            self._marks.clear()
        if self._marks and at - self._marks[-1].at < _MARK_EVERY:
            return

        self._marks.append(_Mark(at, self._as_mark(now), is_known))
        self._is_last_open = True

    def _as_mark(self, now: Comparison) -> Comparison:
        """The cut, with less than vLLM had at least if it was read late.

        What it lacked would else be missing in the growth since.
        """
        if not self._marks:
            return now
        first = self._marks[0].cut
        grown = now.since(first).total
        least = {
            name: min(least, first.least.get(name, least) + grown.get(name, 0))
            for name, least in now.least.items()
        }
        return replace(now, least=least)

    def _drop_marks(self, at: float, now: Comparison, *, is_bounded: bool) -> None:
        """Keeps growth to five minutes, or as long as it takes to see enough of it."""
        while len(self._marks) > 1 and at - self._marks[1].at >= _SPAN:
            if not is_bounded and now.since(self._marks[1].cut).counted < ENOUGH:
                return
            self._marks.popleft()

    def _follow_clock(self, at: float) -> None:
        """If the clock was set back, what happened before is as of now."""
        if self._reported_at is not None:
            self._reported_at = min(self._reported_at, at)
        if self._off_since is not None:
            self._off_since = min(self._off_since, at)
        if self._marks and self._marks[-1].at > at:
            self._marks = deque(replace(mark, at=at) for mark in self._marks)
