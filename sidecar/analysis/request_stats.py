"""What the requests of one model add up to, by temperature: since the start, and lately."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from sidecar.analysis.attribution_result import AttributedRequest, Attribution, acceptance_error
from sidecar.analysis.distribution import ACCEPTANCE_EDGES, Distribution
from sidecar.requests.record import Outcome

WORST_ERROR: Final = 0.025  # standard error of a bucket's acceptance rate above which it is not told
LENGTH_EDGES: Final = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 8.0)  # few: each edge costs 16 series
TTFT_EDGES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
TPOT_EDGES: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)
DURATION_EDGES: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BINS: Final = 10
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
    ``positions[p]`` is the acceptance rate at draft position p, from exact
    requests alone.
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


class SlidingWork:
    """The attributed requests of one temperature over the last ``seconds``, and of them at most ``most``."""

    def __init__(self, seconds: float, most: int = 2000) -> None:
        self._seconds = seconds
        self._most = most
        self._entries: deque[tuple[float, AttributedRequest]] = deque()
        self._exact_drafts = 0
        self._positions: list[int] = []

    def add(self, request: AttributedRequest, at: float) -> None:
        """Adds a request that was settled at ``at``."""
        if request.attribution is Attribution.NONE:
            return
        self._entries.append((at, request))
        self._count(request.histogram, 1)
        if len(self._entries) > self._most:
            self._drop()

    def read(self, now: float) -> RecentWork:
        """The window that ends now."""
        while self._entries and self._entries[0][0] < now - self._seconds:
            self._drop()
        requests = [request for _, request in self._entries]
        drafts = math.fsum(request.drafts for request in requests)
        draft_tokens = math.fsum(request.draft_tokens for request in requests)
        accepted = math.fsum(request.accepted_tokens for request in requests)
        ratios = sorted(request.acceptance for request in requests if request.acceptance is not None)
        return RecentWork(
            requests=len(requests),
            drafts=drafts,
            draft_tokens=draft_tokens,
            accepted_tokens=accepted,
            acceptance=accepted / draft_tokens if acceptance_error(requests) <= WORST_ERROR else None,
            p10=quantile(ratios, 0.1),
            p50=quantile(ratios, 0.5),
            p90=quantile(ratios, 0.9),
            distribution=_binned(ratios),
            positions=tuple(tokens / self._exact_drafts for tokens in self._positions) if self._exact_drafts else (),
        )

    def _drop(self) -> None:
        self._count(self._entries.popleft()[1].histogram, -1)

    def _count(self, histogram: Sequence[int], sign: int) -> None:
        self._exact_drafts += sign * sum(histogram)
        _add_positions(self._positions, histogram, sign)


class RequestStats:
    """All of one model's requests. Every label set exists from the start, at 0."""

    def __init__(self, temperatures: Iterable[str], window: float) -> None:
        """``temperatures`` are all labels there can be; ``window`` is the sliding window in seconds."""
        self.temperatures = tuple(temperatures)
        told = (Attribution.EXACT, Attribution.INFERRED)
        self.work = {key: Work() for key in product(self.temperatures, told)}
        self.requests = dict.fromkeys(product(self.temperatures, Attribution, Outcome), 0)
        self.latencies = {temperature: Latencies() for temperature in self.temperatures}
        self._recent = {temperature: SlidingWork(window) for temperature in self.temperatures}

    def add(self, request: AttributedRequest, at: float) -> None:
        """Adds a request that was settled at ``at``, in Unix seconds."""
        self.requests[request.temperature, request.attribution, request.outcome] += 1
        if request.attribution is not Attribution.NONE:
            self.work[request.temperature, request.attribution].add(request)
            self._recent[request.temperature].add(request, at)
        self.latencies[request.temperature].add(request)

    def recent(self, now: float) -> dict[str, RecentWork]:
        """The sliding window of every temperature."""
        return {temperature: window.read(now) for temperature, window in self._recent.items()}


def _binned(ratios: Sequence[float]) -> tuple[int, ...]:
    counts = [0] * _BINS
    for ratio in ratios:
        counts[min(int(ratio * _BINS), _BINS - 1)] += 1
    return tuple(counts)


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
