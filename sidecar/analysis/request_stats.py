"""The totals of one model's requests, by temperature: since the start, and over the sliding window."""

from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final

from sidecar.analysis.attribution.result import AttributedRequest, Attribution, AttributionOutcome, attribution_outcome
from sidecar.analysis.histogram import ACCEPTANCE_EDGES, Histogram
from sidecar.analysis.quantile import quantile
from sidecar.analysis.request_window import PARTS, SlidingRequests, SpeculationSummary, add_positions
from sidecar.analysis.sliding import SlidingParts
from sidecar.requests.record import Outcome

LENGTH_EDGES: Final = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 8.0)  # few: each edge costs 16 series
TTFT_EDGES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
TPOT_EDGES: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)
DURATION_EDGES: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TAIL_SECONDS: Final = 3600.0  # to which the window of the tail stretches
_TAIL_REQUESTS: Final = 1000  # enough for a 10th percentile


class AttributedTotals:
    """Speculation attributed to one temperature's requests since the start, by one attribution."""

    __slots__ = ("acceptance", "accepted_per_position", "accepted_tokens", "draft_tokens", "drafts", "length")

    def __init__(self) -> None:
        self.drafts = 0.0
        self.draft_tokens = 0.0
        self.accepted_tokens = 0.0
        self.accepted_per_position: list[int] = []  # only from exact requests
        self.acceptance = Histogram(ACCEPTANCE_EDGES)
        self.length = Histogram(LENGTH_EDGES)

    def add(self, request: AttributedRequest) -> None:
        """Adds one request."""
        self.drafts += request.drafts
        self.draft_tokens += request.draft_tokens
        self.accepted_tokens += request.accepted_tokens
        if request.acceptance is not None:
            self.acceptance.observe(request.acceptance)
        if request.acceptance_length is not None:
            self.length.observe(request.acceptance_length)
        add_positions(self.accepted_per_position, request.histogram)


class Latencies:
    """Latencies of one temperature's completed requests, as the source saw them, in seconds."""

    __slots__ = ("duration", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT_EDGES)
        self.tpot = Histogram(TPOT_EDGES)
        self.duration = Histogram(DURATION_EDGES)

    def add(self, request: AttributedRequest) -> None:
        """Adds one request; one that was not completed is ignored."""
        if request.outcome is not Outcome.COMPLETED:
            return
        self.duration.observe(request.duration)
        if request.ttft is not None:
            self.ttft.observe(request.ttft)
        if request.tpot is not None:
            self.tpot.observe(request.tpot)


class AcceptanceTail:
    """The acceptance rates of one model's latest requests, at whatever temperature."""

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self._window = window
        self._latest: deque[tuple[float, float]] = deque(maxlen=_TAIL_REQUESTS)

    def add(self, rate: float, at: float) -> None:
        """Adds a request's rate, 0 to 1, at ``at`` in Unix seconds."""
        self._latest.append((at, rate))

    def p10(self, now: float, requests: int) -> float | None:
        """Over the window that ends at ``now``, or over the latest ``requests`` of an hour if the window has fewer.

        None if the hour has fewer, too.
        """
        rates = [rate for at, rate in self._latest if at >= now - self._window]
        if len(rates) < requests:
            rates = [rate for at, rate in self._latest if at >= now - _TAIL_SECONDS][-requests:]
        return quantile(sorted(rates), 0.1) if len(rates) >= requests else None


class RequestStats:
    """All of one model's requests. Every label set exists from the start, at 0."""

    def __init__(self, temperatures: Iterable[str], window: float) -> None:
        """``temperatures`` are all possible labels; ``window`` is the sliding window in seconds."""
        self.temperatures = tuple(temperatures)
        with_numbers = (Attribution.EXACT, Attribution.INFERRED)
        self.totals = {key: AttributedTotals() for key in product(self.temperatures, with_numbers)}
        self.requests = dict.fromkeys(product(self.temperatures, Attribution, Outcome), 0)
        self.latencies = {temperature: Latencies() for temperature in self.temperatures}
        self._window = window
        self.clear_window()

    def add(self, request: AttributedRequest, at: float) -> None:
        """Adds a request that was settled at ``at``, in Unix seconds."""
        self.requests[request.temperature, request.attribution, request.outcome] += 1
        if request.attribution is not Attribution.NONE:
            self.totals[request.temperature, request.attribution].add(request)
            self._recent[request.temperature].add(request, at)
            if request.acceptance is not None:
                self.tail.add(request.acceptance, at)
        self.latencies[request.temperature].add(request)
        self._outcomes.current(at)[attribution_outcome(request)] += 1

    def clear_window(self) -> None:
        """Restarts the sliding windows; the totals stay."""
        self._recent = {temperature: SlidingRequests(self._window) for temperature in self.temperatures}
        self._outcomes = SlidingParts[Tally[AttributionOutcome]](self._window, self._window / PARTS, Tally)
        self.tail = AcceptanceTail(self._window)

    def recent(self, now: float) -> dict[str, SpeculationSummary]:
        """The sliding window of every temperature."""
        return {temperature: window.read(now) for temperature, window in self._recent.items()}

    def attribution_outcomes(self, now: float) -> Mapping[AttributionOutcome, int]:
        """How many requests of the sliding window had which attribution outcome; every one is present."""
        parts = self._outcomes.read(now)
        return {outcome: sum(counts[outcome] for counts in parts) for outcome in AttributionOutcome}
