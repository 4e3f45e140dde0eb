"""One temperature's requests over the sliding window: sums over all of them, quantiles of the latest."""

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Final

from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.analysis.quantile import quantile
from sidecar.analysis.sliding import SlidingParts
from sidecar.analysis.verdict import Evidence
from sidecar.requests.record import Outcome

WORST_ERROR: Final = 0.015  # standard error of an acceptance rate above which there is no rate
_BINS: Final = 10
PARTS: Final = 60  # the window's resolution; bounds its memory
_MOST_POSITIONS: Final = 64  # further draft positions count as the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSummary:
    """What speculation did for a set of requests.

    ``acceptance`` is accepted / draft tokens; None without drafts, and if its standard error is too large. P10 to P90
    are quantiles of single requests' acceptance, and ``distribution`` counts it in ten equal bins from 0 to 1.
    ``position_rates[p]`` is the acceptance rate at draft position p, from requests with exact numbers only.
    ``attribution`` names their origins: exact, inferred, or both. TTFT and TPOT are those of completed requests, in
    seconds; None if unknown.
    """

    requests: int = 0
    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    acceptance: float | None = None
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    distribution: tuple[int, ...] = (0,) * _BINS
    position_rates: tuple[float, ...] = ()
    attribution: str | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    tpot_p99: float | None = None

    def evidence(self, total: float) -> Evidence:
        """The evidence for a judgement; ``total`` is the draft tokens of all temperatures."""
        return Evidence(
            requests=self.requests,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            acceptance=self.acceptance,
            position_rates=self.position_rates,
            share=self.draft_tokens / total if total > 0 else 0.0,
        )


class SlidingRequests:
    """The attributed requests of the last ``seconds``, to a sixtieth of them.

    The latest ``most`` are kept individually, for quantiles, distribution, positions and attribution; the sums include
    all. The cost of reading does not depend on their number.
    """

    def __init__(self, seconds: float, most: int = 2000) -> None:
        self._most = most
        self._sums = SlidingParts(seconds, seconds / PARTS, lambda: [0.0] * 5)  # of ``_sums_of``
        self._latest: deque[tuple[float, AttributedRequest]] = deque()
        self._ratios: list[float] = []  # of the latest, sorted, like the next two
        self._ttfts: list[float] = []
        self._tpots: list[float] = []
        self._origins: Counter[Attribution] = Counter()
        self._bins = [0] * _BINS
        self._exact_drafts = 0
        self._positions: list[int] = []

    def add(self, request: AttributedRequest, at: float) -> None:
        """Adds a request that was attributed at ``at``; without numbers it is ignored."""
        if request.attribution is Attribution.NONE:
            return
        sums = self._sums.current(at)
        sums[:] = map(add, sums, _sums_of(request))
        self._latest.append((at, request))
        self._count(request, 1)
        if len(self._latest) > self._most:
            self._count(self._latest.popleft()[1], -1)

    def read(self, now: float) -> SpeculationSummary:
        """The window that ends at ``now``."""
        parts = self._sums.read(now)
        while self._latest and self._latest[0][0] < self._sums.oldest:
            self._count(self._latest.popleft()[1], -1)
        if not parts:
            return SpeculationSummary()
        requests, drafts, draft_tokens, accepted, error_squares = map(sum, zip(*parts, strict=True))
        is_known = draft_tokens > 0 and math.sqrt(error_squares) <= WORST_ERROR * draft_tokens
        return SpeculationSummary(
            requests=round(requests),
            drafts=drafts,
            draft_tokens=draft_tokens,
            accepted_tokens=accepted,
            acceptance=accepted / draft_tokens if is_known else None,
            p10=quantile(self._ratios, 0.1),
            p50=quantile(self._ratios, 0.5),
            p90=quantile(self._ratios, 0.9),
            distribution=tuple(self._bins),
            position_rates=tuple(accepted / self._exact_drafts for accepted in self._positions)
            if self._exact_drafts
            else (),
            attribution=", ".join(sorted(+self._origins)) or None,
            ttft_p50=quantile(self._ttfts, 0.5),
            ttft_p99=quantile(self._ttfts, 0.99),
            tpot_p50=quantile(self._tpots, 0.5),
            tpot_p99=quantile(self._tpots, 0.99),
        )

    def _count(self, request: AttributedRequest, sign: int) -> None:
        self._exact_drafts += sign * sum(request.histogram)
        add_positions(self._positions, request.histogram, sign)
        self._origins[request.attribution] += sign
        if request.acceptance is not None:
            self._bins[min(int(request.acceptance * _BINS), _BINS - 1)] += sign
            _count_in_order(self._ratios, request.acceptance, sign)
        if request.outcome is Outcome.COMPLETED:
            _count_in_order(self._ttfts, request.ttft, sign)
            _count_in_order(self._tpots, request.tpot, sign)


def _count_in_order(ordered: list[float], value: float | None, sign: int) -> None:
    if value is not None and sign > 0:
        insort(ordered, value)
    elif value is not None:
        del ordered[bisect_left(ordered, value)]


def add_positions(positions: list[int], histogram: Sequence[int], sign: int = 1) -> None:
    """Adds accepted tokens by draft position: a step that accepted j tokens accepted those at positions 0 to j - 1."""
    deepest = min(len(histogram) - 1, _MOST_POSITIONS)
    positions += [0] * (deepest - len(positions))
    reached = 0
    for accepted in range(len(histogram) - 1, 0, -1):
        reached += histogram[accepted]
        if accepted <= _MOST_POSITIONS:
            positions[accepted - 1] += sign * reached


def _sums_of(request: AttributedRequest) -> tuple[float, ...]:
    return (1, request.drafts, request.draft_tokens, request.accepted_tokens, request.error * request.error)
