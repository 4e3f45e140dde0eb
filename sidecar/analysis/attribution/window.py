"""vLLM's counters between two polls, and the engine's steps as a clock.

A running request takes part in every step, so steps are the time that matters to it. Between two polls the steps are
taken as evenly spread over the time in which a request was in flight: an idle engine makes none.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from sidecar.engine.names import Counter
from sidecar.engine.timeline import Timeline

Interval = tuple[float, float]  # Unix seconds

_IDLE: Final = 0.02  # of a poll interval: gaps between requests that are not worth remembering


class Clock(IntEnum):
    """What a request's steps are read off."""

    STEPS = 0  # vLLM's own count of engine steps; several API servers each count their part of them
    SHARED = 1  # the steps of all requests, shared by those in flight


class Growth(NamedTuple):
    """What the counters of all engines of a model grew by.

    ``steps`` are those of the engine that a request in flight is on; None where vLLM does not count them.
    """

    drafts: float
    draft_tokens: float
    accepted: float
    generated: float
    steps: float | None

    @property
    def emitted(self) -> float:
        """Steps summed over the requests that took part: each gives one token more than it accepted."""
        return max(self.generated - self.accepted, 0.0)


@dataclass(slots=True)
class Window:
    """The time between two polls. Each ``Clock`` stands at ``before`` at its start and goes ``clock`` in it.

    ``busy`` are the parts with a request in flight; None: all of it. In a ``broken`` window vLLM restarted.
    ``queue``: requests running and waiting at its end, as vLLM has it; None where it does not tell.
    ``values`` and ``rates`` are what requests brought into it (``attribution_ledger``).
    """

    start: float
    end: float
    growth: Growth
    in_flight: float  # mean number of requests
    busy: tuple[Interval, ...] | None
    broken: bool
    queue: tuple[float, float] | None = None
    before: tuple[float, float] = (0.0, 0.0)
    clock: tuple[float, float] = field(init=False)
    restarts_before: int = 0
    drafts_before: float = 0.0
    tokens_before: float = 0.0
    generated_before: float = 0.0
    values: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    closed: bool = False

    @property
    def seconds(self) -> float:
        """From poll to poll."""
        return self.end - self.start

    @property
    def busy_seconds(self) -> float:
        """How long a request was in flight."""
        return self.seconds if self.busy is None else sum(end - start for start, end in self.busy)

    def __post_init__(self) -> None:
        busy = self.busy_seconds
        shared = self.growth.emitted * busy / max(self.in_flight * self.seconds, busy)
        self.clock = (shared if self.growth.steps is None else self.growth.steps), shared

    def share_before(self, at: float) -> float:
        """The part of the window's steps before a moment in it, 0 to 1."""
        if self.busy is None:
            return (at - self.start) / self.seconds
        whole = sum(end - start for start, end in self.busy)
        return sum(min(end, at) - start for start, end in self.busy if start < at) / whole


def growth_between(timelines: Sequence[Timeline], start: float, end: float) -> Growth | None:
    """The growth of all engines together; None where none of them tells."""
    drafts = tokens = accepted = generated = 0.0
    running = stepped = 0.0
    told = False
    for timeline in timelines:
        one = [timeline.growth(counter, start, end) for counter in _COUNTERS]
        if one[0] is None or one[1] is None or one[2] is None or one[3] is None:
            continue
        told = True
        drafts, tokens, accepted, generated = drafts + one[0], tokens + one[1], accepted + one[2], generated + one[3]
        if one[4]:  # requests spread over the engines, so an engine counts as much as it has running
            stepped += one[3] - one[2]
            running += (one[3] - one[2]) / one[4]
    if not told:
        return None
    known = any(timeline.value_at(Counter.STEPS, end) is not None for timeline in timelines)
    steps = stepped / running if running > 0 else 0.0
    return Growth(drafts, tokens, accepted, generated, steps if known else None)


def queue_at(timelines: Sequence[Timeline], at: float) -> tuple[float, float] | None:
    """Requests running and waiting, of all engines together; None where none of them tells."""
    told = [queue for timeline in timelines if (queue := timeline.queue_at(at)) is not None]
    return (sum(running for running, _ in told), sum(waiting for _, waiting in told)) if told else None


_COUNTERS: Final = (
    Counter.DRAFTS,
    Counter.DRAFT_TOKENS,
    Counter.ACCEPTED_TOKENS,
    Counter.GENERATION_TOKENS,
    Counter.STEPS,
)


def occupancy(intervals: Iterable[Interval], start: float, end: float) -> tuple[float, tuple[Interval, ...] | None]:
    """The mean number of requests in a window, and the parts that had any (None: all of it, or none)."""
    inside: list[Interval] = []
    total = 0.0
    throughout = False
    for begun, ended in intervals:
        low, high = max(begun, start), min(ended, end)
        if high > low:
            total += high - low
            throughout = throughout or (low == start and high == end)
            inside.append((low, high))
    mean = total / (end - start)
    if throughout or not inside:
        return mean, None
    return mean, _union(sorted(inside), (end - start) * _IDLE)


def _union(intervals: list[Interval], gap: float) -> tuple[Interval, ...]:
    merged = [intervals[0]]
    for low, high in intervals[1:]:
        if low <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


class Windows:
    """The windows of the last ``history`` seconds, oldest first, with the clock running through them."""

    def __init__(self, history: float, most: int = 20_000) -> None:
        self._history = history
        self._most = most
        self._ends: list[float] = []
        self._windows: list[Window] = []

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def last(self) -> Window | None:
        """The newest window."""
        return self._windows[-1] if self._windows else None

    def append(self, window: Window) -> None:
        """Adds a window and forgets those that are too old."""
        if (last := self.last) is not None:
            window.before = (last.before[0] + last.clock[0], last.before[1] + last.clock[1])
            window.restarts_before = last.restarts_before + last.broken
            window.drafts_before = last.drafts_before + last.growth.drafts
            window.generated_before = last.generated_before + last.growth.generated
            window.tokens_before = last.tokens_before + last.growth.draft_tokens
        self._windows.append(window)
        self._ends.append(window.end)
        stale = max(bisect_right(self._ends, window.end - self._history), len(self._ends) - self._most)
        if stale >= _PRUNE:
            del self._windows[:stale], self._ends[:stale]

    def covering(self, start: float, end: float) -> tuple[int, int] | None:
        """The indices of the windows that hold ``start`` and ``end``; None where one of them is not covered."""
        if not self._windows or start < self._windows[0].start or end > self._ends[-1]:
            return None
        first = bisect_right(self._ends, start)
        if first == len(self._ends):
            first -= 1
        last = max(min(bisect_right(self._ends, end), len(self._ends) - 1), first)
        return first, last

    def unbroken(self, found: tuple[int, int]) -> bool:
        """Whether vLLM did not restart in any of these windows."""
        last = self._windows[found[1]]
        return last.restarts_before + last.broken == self._windows[found[0]].restarts_before

    def steps(self, clock: Clock, found: tuple[int, int], start: float, end: float) -> float:
        """How far a clock goes from one moment to another; ``found`` are the windows that hold them (``covering``)."""
        first, last = self._windows[found[0]], self._windows[found[1]]
        begun = first.before[clock] + first.clock[clock] * first.share_before(start)
        return last.before[clock] + last.clock[clock] * last.share_before(end) - begun

    def ending_after(self, at: float) -> Iterable[Window]:
        """The windows that end after a moment."""
        return self._windows[bisect_right(self._ends, at) :]

    def between(self, first: int, last: int) -> Iterable[Window]:
        """The windows from one index to another, both included."""
        return self._windows[first : last + 1]

    def at(self, index: int) -> Window:
        """The window at an index from ``covering``."""
        return self._windows[index]

    def generated(self, first: int, last: int) -> float:
        """Generated tokens from one window to another, both included."""
        begin, end = self._windows[first], self._windows[last]
        return end.generated_before + end.growth.generated - begin.generated_before

    def tokens_per_draft(self, first: int, last: int) -> tuple[float, float]:
        """Draft tokens and drafts from one window to another, both included."""
        begin, end = self._windows[first], self._windows[last]
        return (
            end.tokens_before + end.growth.draft_tokens - begin.tokens_before,
            end.drafts_before + end.growth.drafts - begin.drafts_before,
        )


_PRUNE: Final = 64


def polls_between(timeline: Timeline, after: float | None, until: float) -> list[Interval]:
    """The polls of a timeline after one moment and not after another, as neighbouring pairs."""
    times = timeline.times
    first = 0 if after is None else max(bisect_right(times, after) - 1, 0)
    return list(pairwise(times[first : bisect_right(times, until)]))


def accepted_by_position(timelines: Sequence[Timeline], since: float) -> tuple[list[float], float]:
    """Accepted tokens by draft position, and drafts, of all engines together since a moment."""
    positions: list[float] = []
    drafts = 0.0
    for timeline in timelines:
        span = timeline.span
        if span is None or span.end <= since:
            continue
        start = max(span.start, since)
        grown = timeline.positions_growth(start, span.end)
        positions += [0.0] * (len(grown) - len(positions))
        for position, tokens in enumerate(grown):
            positions[position] += tokens
        drafts += timeline.growth(Counter.DRAFTS, start, span.end) or 0.0
    return positions, drafts
