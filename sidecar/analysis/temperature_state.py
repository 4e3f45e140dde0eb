"""The state of one temperature of one model: live totals, and distributions of finished requests."""

from dataclasses import replace
from typing import Final, NamedTuple

from sidecar.analysis.acceptance import NO_DRAFTS, Acceptance
from sidecar.analysis.histogram import ACCEPTANCE_EDGES, Histogram
from sidecar.analysis.model_speed import TemperatureSpeed
from sidecar.analysis.quantile import quantile
from sidecar.analysis.recent import Ordered, Recent, acceptance_bin, duration_bin
from sidecar.analysis.report import TemperatureReport
from sidecar.analysis.split.labels import LiveTally
from sidecar.analysis.verdict import Judgement
from sidecar.requests.messages import FinishedRequest
from sidecar.requests.tally import Outcome

LENGTH_EDGES: Final = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0)  # few: each edge costs a series per temperature
TTFT_EDGES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TPOT_EDGES: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
DURATION_EDGES: Final = (1.0, 2.5, 5.0, 10.0, 60.0, 300.0)
_BINS: Final = 10
_SPREAD: Final = (0.1, 0.5, 0.9)
_TIMES: Final = (0.5, 0.95, 0.99)


class Measured(NamedTuple):
    """One finished request's numbers; None if it has none, or if a time would be negative."""

    acceptance: float | None
    length: float | None
    ttft: float | None
    tpot: float | None
    duration: float | None


def measured(request: FinishedRequest) -> Measured:
    """The numbers of a request. A failed one has no times; one whose client left has the times until then."""
    arrival, first, last = request.arrival, request.first_token, request.last_token
    failed = request.outcome is Outcome.ERROR
    decoded = request.output_tokens - 1
    decoding = None if failed or decoded < 1 else _between(first, last)
    return Measured(
        acceptance=request.accepted_tokens / request.draft_tokens if request.draft_tokens else None,
        length=1 + request.accepted_tokens / request.drafts if request.drafts else None,
        ttft=None if failed else _between(arrival, first),
        tpot=None if decoding is None else decoding / decoded,
        duration=None if failed else _between(arrival, last),
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None or end < start else end - start


class TemperatureState:
    """One temperature; bounded whatever the traffic."""

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self.tally = LiveTally(window)
        self._acceptances, self._lengths = Histogram(ACCEPTANCE_EDGES), Histogram(LENGTH_EDGES)
        self._ttft, self._tpot = Histogram(TTFT_EDGES), Histogram(TPOT_EDGES)
        self._durations = Histogram(DURATION_EDGES)
        self._recent_acceptances = Recent(window, acceptance_bin)
        self._recent_ttft, self._recent_tpot = Recent(window, duration_bin), Recent(window, duration_bin)

    def finished(self, at: float, found: Measured) -> None:
        """Adds a request that finished before ``at``."""
        for histogram, value in zip(
            (self._acceptances, self._lengths, self._ttft, self._tpot, self._durations), found, strict=True
        ):
            if value is not None:
                histogram.observe(value)
        for recent, value in zip(
            (self._recent_acceptances, self._recent_ttft, self._recent_tpot),
            (found.acceptance, found.ttft, found.tpot),
            strict=True,
        ):
            if value is not None:
                recent.add(at, value)

    def report(
        self, label: str, now: float, window: Acceptance | None, judgement: Judgement, speed: TemperatureSpeed
    ) -> TemperatureReport:
        """The temperature at ``now``; ``window`` is the sliding one, None unless the last poll is fresh."""
        acceptances, ttft, tpot = (
            recent.ordered(now) if window is not None else Ordered(())
            for recent in (self._recent_acceptances, self._recent_ttft, self._recent_tpot)
        )
        return TemperatureReport(
            temperature=label,
            tally=self.tally.total,
            acceptances=self._acceptances.snapshot(),
            lengths=self._lengths.snapshot(),
            ttft=self._ttft.snapshot(),
            tpot=self._tpot.snapshot(),
            durations=self._durations.snapshot(),
            window=window or replace(NO_DRAFTS, share=0.0),
            acceptance_quantiles={one: quantile(acceptances, one) for one in _SPREAD},
            acceptance_bins=_bins(acceptances),
            ttft_quantiles={one: quantile(ttft, one) for one in _TIMES},
            tpot_quantiles={one: quantile(tpot, one) for one in _TIMES},
            judgement=judgement,
            speedup=speed.speedup if window is not None else None,
            saved_seconds=speed.saved,
            lost_seconds=speed.lost,
        )


def _bins(acceptances: Ordered) -> tuple[int, ...]:
    bins = [0] * _BINS
    for acceptance, count in acceptances.counts:
        bins[min(int(acceptance * _BINS), _BINS - 1)] += count
    return tuple(bins)
