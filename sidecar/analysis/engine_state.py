"""The state of one engine: takes one snapshot per poll, gives a report at any time."""

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.analysis.acceptance import Acceptance, window_acceptance
from sidecar.analysis.histogram import ACCEPTANCE_EDGES, Histogram
from sidecar.analysis.kv_cache import KvCacheUsage
from sidecar.analysis.latency import Latency, latency
from sidecar.engine.continuation import Continuation, Totals
from sidecar.engine.histograms import HistogramWindow
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot
from sidecar.engine.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookback:
    """How far back each kind of number looks, in seconds."""

    latency: float = 300.0
    kv_peak: float = 60.0
    history: float = 900.0


History = tuple[tuple[float, float | None], ...]  # (Unix seconds, a ratio or None), oldest first
_SLICES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """One engine at one moment.

    ``counters`` and ``accepted_per_position`` are totals that never fall. The fields after ``window_acceptances``
    describe the moment, and are empty or None if the last poll failed.
    """

    key: EngineKey
    counters: Mapping[Counter, float]
    accepted_per_position: tuple[float, ...]
    kv_cache_usages: Histogram  # one observation per poll
    window_acceptances: Histogram  # one observation per poll with drafts
    gauges: Mapping[Gauge, float]
    kv_cache_peak: float | None
    kv_cache_capacity_tokens: int | None
    latencies: Mapping[Phase, Latency]
    acceptance: Acceptance | None  # over the latency window
    acceptance_history: History  # the same window in thirty slices
    kv_cache_history: History


class EngineState:
    """One engine's history and distributions; bounded whatever vLLM sends."""

    def __init__(self, lookback: Lookback) -> None:
        self._lookback = lookback
        self._continuation = Continuation()
        self._histograms = HistogramWindow(lookback.latency)
        self._kv_cache = KvCacheUsage(lookback.kv_peak, lookback.latency)
        self._window_acceptances = Histogram(ACCEPTANCE_EDGES)
        self._counters: dict[Counter, float] = {}
        self._positions: tuple[float, ...] = ()
        self._latest: EngineSnapshot | None = None
        self.timeline = Timeline(lookback.history)
        self.acceptance: Acceptance | None = None  # over the latency window that ends at the last snapshot
        self.seen_at = 0.0
        self.process_start: float | None = None  # of the process that the last snapshot came from

    def observe(self, at: float, snapshot: EngineSnapshot, *, restarted: bool | None) -> Totals:
        """Takes in one poll's snapshot at ``at``, Unix seconds; ``restarted`` as in ``Continuation.advance``."""
        totals = self._continuation.advance(snapshot, restarted=restarted)
        previous = self.timeline.times[-1:]
        self.timeline.append(at, totals)
        self._histograms.append(at, totals.engine.histograms)
        if previous and previous[0] < at:
            window = window_acceptance(self.timeline, previous[0], at)
            if window is not None:
                self._window_acceptances.observe(window.rate)
        if (usage := snapshot.gauges.get(Gauge.KV_CACHE_USAGE)) is not None:
            self._kv_cache.observe(at, usage)
        self._counters.update(totals.engine.counters)
        self._positions = totals.engine.accepted_per_position or self._positions
        self._latest, self.seen_at = snapshot, at
        self.acceptance = window_acceptance(self.timeline, self._window_start(), at)
        return totals

    def report(self, key: EngineKey, now: float, *, fresh: bool, history: bool = False) -> EngineReport:
        """The state at ``now``; what describes the moment is included only if the last poll is ``fresh``.

        ``history`` asks for the two histories, which only the page and the status show.
        """
        latest = self._latest if fresh else None
        return EngineReport(
            key=key,
            counters=self._counters,
            accepted_per_position=self._positions,
            kv_cache_usages=self._kv_cache.distribution,
            window_acceptances=self._window_acceptances,
            gauges=latest.gauges if latest else {},
            kv_cache_peak=self._kv_cache.peak(now) if latest else None,
            kv_cache_capacity_tokens=latest.kv_cache_capacity_tokens if latest else None,
            latencies=self._latencies() if latest else {},
            acceptance=self.acceptance if latest else None,
            acceptance_history=self._acceptance_history() if latest and history else (),
            kv_cache_history=self._kv_cache.history() if latest and history else (),
        )

    def _latencies(self) -> dict[Phase, Latency]:
        found = {phase: latency(self._histograms.growth(phase)) for phase in Phase}
        return {phase: known for phase, known in found.items() if known is not None}

    def _window_start(self) -> float:
        """Where the latency window begins that ends at the last snapshot."""
        return max(self.timeline.times[0], self.seen_at - self._lookback.latency)

    def _acceptance_history(self) -> History:
        start, end = self._window_start(), self.seen_at
        step = (end - start) / _SLICES
        ends = [*(start + step * (index + 1) for index in range(_SLICES - 1)), end]
        windows = [window_acceptance(self.timeline, end - step, end) for end in ends]
        return tuple((end, window.rate if window else None) for end, window in zip(ends, windows, strict=True))
