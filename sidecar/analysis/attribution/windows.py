"""vLLM's counters between two polls, and the engine's steps as a clock over a request's residence.

A request takes part in every engine step while it runs. Within a window the steps are assumed to be evenly spread over
the time in which any request was in flight: an idle engine makes none.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from sidecar.engine.names import SPECULATION, Counter
from sidecar.engine.timeline import Timeline

Interval = tuple[float, float]  # Unix seconds

_PRUNE: Final = 64  # windows dropped together
_MOST_WINDOWS: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of the counters over a window, all engines of a model together.

    ``steps`` are those of an engine; with several engines their mean, weighted by the requests that each runs. None
    if vLLM does not count steps, or several API servers each count their own.
    """

    drafts: float
    draft_tokens: float
    accepted: float
    generated: float
    steps: float | None

    @property
    def emitted(self) -> float:
        """Steps summed over the requests that took part in them: each emits one token besides those it accepted."""
        return max(self.generated - self.accepted, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSums:
    """Cumulative sums over the windows up to a moment; only their differences are meaningful."""

    steps: float = 0.0
    drafts: float = 0.0
    draft_tokens: float = 0.0
    generated: float = 0.0
    restarts: int = 0


@dataclass(slots=True, kw_only=True)
class Window:
    """The time between two polls.

    ``steps``: those of a request in flight throughout. ``busy``: the parts with a request in flight; None: all of it.
    ``restarted``: vLLM restarted in it. ``amounts`` and ``rates`` belong to ``Exposures``.
    """

    start: float
    end: float
    growth: Growth
    steps: float
    busy: tuple[Interval, ...] | None = None
    restarted: bool = False
    before: RunningSums = RunningSums()
    amounts: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    closed: bool = False

    @property
    def seconds(self) -> float:
        """From poll to poll."""
        return self.end - self.start

    @property
    def after(self) -> RunningSums:
        """The totals at its end."""
        before, growth = self.before, self.growth
        return RunningSums(
            steps=before.steps + self.steps,
            drafts=before.drafts + growth.drafts,
            draft_tokens=before.draft_tokens + growth.draft_tokens,
            generated=before.generated + growth.generated,
            restarts=before.restarts + self.restarted,
        )

    def share_before(self, at: float) -> float:
        """The part of the window's steps before a moment in it, 0 to 1."""
        if not self.busy:
            return min(max((at - self.start) / self.seconds, 0.0), 1.0)
        whole = sum(end - start for start, end in self.busy)
        return sum(min(end, at) - start for start, end in self.busy if start < at) / whole

    def clock(self, at: float) -> float:
        """The step clock's reading at a moment in the window."""
        return self.before.steps + self.steps * self.share_before(at)


class Windows:
    """The windows of the last ``history`` seconds, oldest first."""

    def __init__(self, history: float) -> None:
        self._history = history
        self._ends: list[float] = []
        self._windows: list[Window] = []

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def last(self) -> Window | None:
        """The newest window."""
        return self._windows[-1] if self._windows else None

    def append(self, window: Window) -> None:
        """Adds a window, sets its ``before``, and drops windows that are too old."""
        if (last := self.last) is not None:
            window.before = last.after
        self._windows.append(window)
        self._ends.append(window.end)
        stale = max(bisect_right(self._ends, window.end - self._history), len(self._ends) - _MOST_WINDOWS)
        if stale >= _PRUNE:
            del self._windows[:stale], self._ends[:stale]

    def at(self, moment: float) -> Window | None:
        """The window that holds a moment; None if there is none."""
        if not self._windows or not self._windows[0].start <= moment <= self._ends[-1]:
            return None
        return self._windows[min(bisect_right(self._ends, moment), len(self._ends) - 1)]

    def ending_after(self, moment: float) -> Iterable[Window]:
        """The windows that end after a moment."""
        return self._windows[bisect_right(self._ends, moment) :]


_COUNTERS: Final = (*SPECULATION, Counter.GENERATION_TOKENS)


def growth_between(timelines: Sequence[Timeline], start: float, end: float, *, count_steps: bool) -> Growth | None:
    """The growth of all engines together; None if no engine has all four counters."""
    grown: list[list[float]] = []
    stepped = running = 0.0  # steps, and requests running, both weighted by what each engine emitted
    counted = False
    for timeline in timelines:
        one = [growth for counter in _COUNTERS if (growth := timeline.growth(counter, start, end)) is not None]
        if len(one) < len(_COUNTERS):
            continue
        grown.append(one)
        steps = timeline.growth(Counter.STEPS, start, end)
        counted = counted or steps is not None
        if steps:
            emitted = one[3] - one[2]
            stepped += emitted
            running += emitted / steps
    if not grown:
        return None
    drafts, draft_tokens, accepted, generated = map(sum, zip(*grown, strict=True))
    steps = (stepped / running if running > 0 else 0.0) if counted and count_steps else None
    return Growth(drafts=drafts, draft_tokens=draft_tokens, accepted=accepted, generated=generated, steps=steps)


def shared_steps(growth: Growth, in_flight: float, busy: float) -> float:
    """The steps of a window without a step count: what was emitted, shared by the requests in flight.

    ``in_flight`` is their mean number, ``busy`` the part of the window with any, 0 to 1.
    """
    return growth.emitted * busy / max(in_flight, busy) if busy > 0 else 0.0


def polls_between(timeline: Timeline, after: float | None, until: float) -> list[Interval]:
    """The polls of a timeline after one moment and up to another, as neighbouring pairs."""
    times = timeline.times
    first = 0 if after is None else max(bisect_right(times, after) - 1, 0)
    return list(pairwise(times[first : bisect_right(times, until)]))


def queue_at(timelines: Sequence[Timeline], at: float) -> tuple[float, float]:
    """Requests running and waiting at the last poll up to a moment, all engines together; 0 if vLLM does not say."""
    queues = [queue for timeline in timelines if (queue := timeline.queue_at(at)) is not None]
    return sum(running for running, _ in queues), sum(waiting for _, waiting in queues)
