"""What the requests of one model add up to, by temperature: since the start, and lately."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from sidecar.analysis.attribution.outcome import AttributionOutcome, SlidingOutcomes
from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.analysis.distribution import ACCEPTANCE_EDGES, Distribution
from sidecar.requests.record import Outcome

WORST_ERROR: Final = 0.015  # standard error of a bucket's acceptance rate above which it is withheld
LENGTH_EDGES: Final = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 8.0)  # few: each edge costs 16 series
TTFT_EDGES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
TPOT_EDGES: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)
DURATION_EDGES: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BINS: Final = 10
_STRETCHES: Final = 60  # of the window
_ROUNDING: Final = 1e-6  # tokens; fewer are what adding and taking away left
_MOST_POSITIONS: Final = 64  # more speculative tokens than that count as the last one


class Work:
    """Attributed work since the start, of one temperature and attribution. It only grows."""

    __slots__ = ("acceptance", "accepted_per_position", "accepted_tokens", "draft_tokens", "drafts", "length")

    def __init__(self) -> None:
        self.drafts = 0.0
        self.draft_tokens = 0.0
        self.accepted_tokens = 0.0
        self.accepted_per_position: list[int] = []  # from exact requests alone
        self.acceptance = Distribution(ACCEPTANCE_EDGES)
        self.length = Distribution(LENGTH_EDGES)

    def add(self, request: AttributedRequest) -> None:
        """Adds one request."""
        self.drafts += request.drafts
        self.draft_tokens += request.draft_tokens
        self.accepted_tokens += request.accepted_tokens
        if request.acceptance is not None:
            self.acceptance.observe(request.acceptance)
        if request.acceptance_length is not None:
            self.length.observe(request.acceptance_length)
        _add_positions(self.accepted_per_position, request.histogram, 1)


class Latencies:
    """What the sources saw of one temperature, in seconds."""

    __slots__ = ("duration", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft = Distribution(TTFT_EDGES)
        self.tpot = Distribution(TPOT_EDGES)
        self.duration = Distribution(DURATION_EDGES)

    def add(self, request: AttributedRequest) -> None:
        """Adds one request; only completed ones tell how long a request takes."""
        if request.outcome is not Outcome.COMPLETED:
            return
        self.duration.observe(request.duration)
        if request.ttft is not None:
            self.ttft.observe(request.ttft)
        if request.tpot is not None:
            self.tpot.observe(request.tpot)


@dataclass(frozen=True, slots=True)
class RecentWork:
    """One temperature over the sliding window.

    ``acceptance`` is accepted / drafted; None without drafts, and where the requests are too few to tell. P10 to P90
    are of single requests' acceptance, and so are the counts of ``distribution``, in ten equal bins from 0 to 1.
    ``positions[p]`` is the acceptance rate at draft position p, from exact requests alone.
    """

    requests: int
    drafts: float
    draft_tokens: float
    accepted_tokens: float
    acceptance: float | None
    p10: float | None
    p50: float | None
    p90: float | None
    distribution: tuple[int, ...]
    positions: tuple[float, ...]


class _Sums:
    """What requests add up to; what was added can be taken away again."""

    __slots__ = ("accepted_tokens", "draft_tokens", "drafts", "error_squares", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.drafts = self.draft_tokens = self.accepted_tokens = self.error_squares = 0.0

    def add(self, request: AttributedRequest, sign: int = 1) -> None:
        self.requests += sign
        self.drafts += sign * request.drafts
        self.draft_tokens += sign * request.draft_tokens
        self.accepted_tokens += sign * request.accepted_tokens
        self.error_squares += sign * request.error * request.error

    def remove(self, other: "_Sums") -> None:
        self.requests -= other.requests
        self.drafts -= other.drafts
        self.draft_tokens -= other.draft_tokens
        self.accepted_tokens -= other.accepted_tokens
        self.error_squares -= other.error_squares


class _Stretch:
    """The sums of the requests of a stretch of time, from ``begun`` to ``latest``."""

    __slots__ = ("begun", "latest", "sums")

    def __init__(self, begun: float) -> None:
        self.begun = self.latest = begun
        self.sums = _Sums()


class SlidingWork:
    """The attributed requests of one temperature over the last ``seconds``.

    The latest ``most`` are kept one by one, and quantiles, distribution and positions are theirs. Those before them
    still count in the sums, in stretches of a sixtieth of the window: else shares of the traffic would be wrong on a
    busy server. Reading costs the same however many there are.
    """

    def __init__(self, seconds: float, most: int = 2000) -> None:
        self._seconds = seconds
        self._most = most
        self._entries: deque[tuple[float, AttributedRequest]] = deque()
        self._older: deque[_Stretch] = deque()
        self._sums = _Sums()  # of all
        self._ratios: list[float] = []  # of the entries, in order
        self._bins = [0] * _BINS
        self._exact_drafts = 0
        self._positions: list[int] = []

    def add(self, request: AttributedRequest, at: float) -> None:
        """Adds a request that was settled at ``at``."""
        if request.attribution is Attribution.NONE:
            return
        self._entries.append((at, request))
        self._sums.add(request)
        self._count(request, 1)
        if len(self._entries) > self._most:
            self._fold()
            self._forget(at - self._seconds)

    def read(self, now: float) -> RecentWork:
        """The window that ends now."""
        self._forget(now - self._seconds)
        sums = self._sums
        drafted = sums.draft_tokens > _ROUNDING
        error = math.sqrt(max(sums.error_squares, 0.0)) / sums.draft_tokens if drafted else math.inf
        return RecentWork(
            requests=sums.requests,
            drafts=sums.drafts,
            draft_tokens=sums.draft_tokens,
            accepted_tokens=max(sums.accepted_tokens, 0.0),
            acceptance=max(sums.accepted_tokens, 0.0) / sums.draft_tokens if error <= WORST_ERROR else None,
            p10=quantile(self._ratios, 0.1),
            p50=quantile(self._ratios, 0.5),
            p90=quantile(self._ratios, 0.9),
            distribution=tuple(self._bins),
            positions=tuple(tokens / self._exact_drafts for tokens in self._positions) if self._exact_drafts else (),
        )

    def _fold(self) -> None:
        """The oldest single request goes into the sums of its stretch of time."""
        at, request = self._entries.popleft()
        self._count(request, -1)
        if not self._older or at - self._older[-1].begun >= self._seconds / _STRETCHES:
            self._older.append(_Stretch(at))
        self._older[-1].latest = at
        self._older[-1].sums.add(request)

    def _forget(self, before: float) -> None:
        while self._older and self._older[0].latest < before:
            self._sums.remove(self._older.popleft().sums)
        while not self._older and self._entries and self._entries[0][0] < before:
            _, request = self._entries.popleft()
            self._sums.add(request, -1)
            self._count(request, -1)
        if not self._sums.requests:
            self._sums = _Sums()  # what rounding left

    def _count(self, request: AttributedRequest, sign: int) -> None:
        self._exact_drafts += sign * sum(request.histogram)
        _add_positions(self._positions, request.histogram, sign)
        if (ratio := request.acceptance) is None:
            return
        self._bins[min(int(ratio * _BINS), _BINS - 1)] += sign
        if sign > 0:
            insort(self._ratios, ratio)
        else:
            del self._ratios[bisect_left(self._ratios, ratio)]


class RequestStats:
    """All of one model's requests. Every label set exists from the start, at 0."""

    def __init__(self, temperatures: Iterable[str], window: float) -> None:
        """``temperatures`` are all labels there can be; ``window`` is the sliding window in seconds."""
        self.temperatures = tuple(temperatures)
        told = (Attribution.EXACT, Attribution.INFERRED)
        self.work = {key: Work() for key in product(self.temperatures, told)}
        self.requests = dict.fromkeys(product(self.temperatures, Attribution, Outcome), 0)
        self.latencies = {temperature: Latencies() for temperature in self.temperatures}
        self._window = window
        self.forget_recent()

    def add(self, request: AttributedRequest, at: float) -> None:
        """Adds a request that was settled at ``at``, in Unix seconds."""
        self.requests[request.temperature, request.attribution, request.outcome] += 1
        if request.attribution is not Attribution.NONE:
            self.work[request.temperature, request.attribution].add(request)
            self._recent[request.temperature].add(request, at)
        self.latencies[request.temperature].add(request)
        self._outcomes.add(request, at)

    def forget_recent(self) -> None:
        """Begins the sliding windows anew."""
        self._recent: dict[str, SlidingWork] = {
            temperature: SlidingWork(self._window) for temperature in self.temperatures
        }
        self._outcomes = SlidingOutcomes(self._window)

    def recent(self, now: float) -> dict[str, RecentWork]:
        """The sliding window of every temperature."""
        return {temperature: window.read(now) for temperature, window in self._recent.items()}

    def attribution_outcomes(self, now: float) -> Mapping[AttributionOutcome, int]:
        """How many requests ended in which way, over the sliding window."""
        return self._outcomes.read(now)


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` of the ordered values lie, in a straight line between neighbours."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _add_positions(positions: list[int], histogram: Sequence[int], sign: int) -> None:
    """A step that accepted j tokens accepted those at positions 0 to j - 1."""
    deepest = min(len(histogram) - 1, _MOST_POSITIONS)
    positions += [0] * (deepest - len(positions))
    reached = 0
    for accepted in range(len(histogram) - 1, 0, -1):
        reached += histogram[accepted]
        if accepted <= _MOST_POSITIONS:
            positions[accepted - 1] += sign * reached
