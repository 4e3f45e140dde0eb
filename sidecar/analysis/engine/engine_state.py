"""The state of one engine according to vLLM's page: takes one snapshot per poll."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.analysis.distributions import USAGE_EDGES, WINDOW_EDGES, Histogram, histogram_quantile
from sidecar.analysis.engine.cache import CACHE, CacheWindow
from sidecar.analysis.evidence import NO_DRAFTS, Acceptance
from sidecar.analysis.speed.speedup import LoadTotals, Withheld
from sidecar.analysis.speed.steps import (
    StepCheck,
    Steps,
    counted_steps,
    counter_growth,
    reported_steps,
)
from sidecar.engine.merge import fell, held
from sidecar.engine.names import SPECULATION, Counter, Gauge, Phase, Trait
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading
from sidecar.engine.window import HOUR, CounterWindow, HistogramWindow, Row
from sidecar.requests.messages import StepTally
from sidecar.settings import Settings

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Latency:
    """One phase's latency over a window.

    ``quantiles`` are in seconds, by quantile, over ``count`` observations. Below ``resolution``,
    the upper edge of the first bucket in seconds, a quantile is mere interpolation.
    """

    quantiles: Mapping[float, float]
    count: float
    resolution: float = 0.0

    @property
    def gap_seconds(self) -> float | None:
        """P99 - P50; None if both are in the first bucket."""
        if self.quantiles[0.99] >= self.resolution:
            return self.quantiles[0.99] - self.quantiles[0.5]
        return None

    @property
    def gap_ratio(self) -> float | None:
        """P99 / P50; also None if the median is 0.

        TPOT's median is 0 if most responses have one token.
        """
        if self.gap_seconds is None or not self.quantiles[0.5]:
            return None
        return self.quantiles[0.99] / self.quantiles[0.5]


def latency(histogram: HistogramReading) -> Latency | None:
    """The latency from a histogram's growth over a window; None without observations."""
    quantiles = {quantile: histogram_quantile(quantile, histogram) for quantile in QUANTILES}
    known = {quantile: value for quantile, value in quantiles.items() if value is not None}
    if len(known) < len(QUANTILES):
        return None
    return Latency(known, histogram.count, histogram.edges[0])


def gap_growth(now: Latency, baseline: Mapping[float, float]) -> float | None:
    """The gap P99 - P50 as a multiple of the baseline's; None if either is unknown."""
    if now.gap_seconds is None or not baseline.keys() >= {0.5, 0.99}:
        return None
    if baseline[0.99] <= baseline[0.5]:
        return None
    return now.gap_seconds / (baseline[0.99] - baseline[0.5])


class Limitation(StrEnum):
    """The label value of ``specdec_engine_limitation``; what each means is in ``wording``."""

    V0_COUNTERS = "v0_counters"
    NO_SPECULATION = "no_speculation"
    DIFFUSION = "diffusion"
    NO_REQUEST_TPOT = "no_request_tpot"
    NO_POSITIONS = "no_positions"
    NO_KV_CACHE_CAPACITY = "no_kv_cache_capacity"
    SEVERAL_PROCESSES = "several_processes"
    SEVERAL_SENDERS = "several_senders"
    ITL_PER_TOKEN = "itl_per_token"  # noqa: S105 - not a password


class KvCacheUsage:
    """One engine's KV-cache usage, poll by poll, each 0 to 1."""

    def __init__(self, peak_window: float) -> None:
        """``peak_window`` is in the clock's seconds."""
        self._window = peak_window
        self._polls: deque[tuple[float, float]] = deque()
        self.distribution = Histogram(USAGE_EDGES)

    def observe(self, at: float, usage: float) -> None:
        """Adds one poll's usage.

        If the poll is not later than the last one, the clock was set back: the window restarts.
        """
        if self._polls and at <= self._polls[-1][0]:
            self._polls.clear()
        self._polls.append((at, usage))
        while self._polls[0][0] <= at - self._window:
            self._polls.popleft()
        self.distribution.observe(usage)

    def peak(self, now: float) -> float | None:
        """The highest usage in the window that ends at ``now``; None if it has no poll."""
        return max((usage for at, usage in self._polls if at > now - self._window), default=None)


_COUNTED: Final = (*SPECULATION, *CACHE)


class EngineState:
    """One engine's totals, windows and distributions; bounded whatever vLLM sends."""

    def __init__(self, key: EngineKey, settings: Settings) -> None:
        self.key = key
        self._window_seconds = settings.latency_window
        self.kv_cache = KvCacheUsage(settings.kv_peak_window)
        self.window_acceptances = Histogram(WINDOW_EDGES)
        self.restart_windows()
        self.latest: EngineSnapshot | None = None
        self._several_processes = False
        self._check = StepCheck()
        self.loads = LoadTotals()
        self.is_reported = False  # whether the plug-in has reported steps
        # of vLLM's counters, since the last report of steps
        self._unreported: Mapping[Counter, float] = {}

        # growth of vLLM's counters between the last two polls
        self.grown: Mapping[Counter, float] | None = None
        # between the last two polls; None if the page does not show them
        self.steps: Steps | None = None
        self.seen_at = 0.0
        self.block_tokens = 0  # the size of a block of its KV cache; 0 if unknown
        self.process_start: float | None = None  # of the process that the last snapshot came from

    def restart_windows(self) -> None:
        """Takes the next snapshot as the first: what it has counted is not growth.

        Distributions go on.
        """
        self._histograms = HistogramWindow(self._window_seconds)
        self._window, self._hour = CounterWindow(self._window_seconds), CounterWindow(HOUR)
        self.held: EngineSnapshot | None = None  # the last snapshot, with counters that never fell

    def judge_from(self, at: float) -> None:
        """Acceptance before ``at``, the last poll's time, is in no window."""
        self._window, self._hour = CounterWindow(self._window_seconds), CounterWindow(HOUR)
        if self.latest is not None and self.held is not None:
            for window in (self._window, self._hour):
                window.count(at, _row(self.latest, self.held), has_restarted=False)

    def observe(
        self, at: float, snapshot: EngineSnapshot, *, restarted: bool | None, several: bool
    ) -> bool:
        """Takes in a poll at ``at``, Unix seconds; returns whether vLLM restarted before it.

        ``restarted`` says whether the process changed. If that is unknown (None), a counter that
        fell means a restart. ``several``: the page is the sum of several API servers.
        """
        before = self.held
        if restarted is None:
            restarted = before is not None and fell(before, snapshot)
        self.held = after = snapshot if before is None or restarted else held(before, snapshot)
        self.grown = self.steps = None
        if restarted:
            self._check, self._unreported = StepCheck(), {}
        if before is not None and self.seen_at < at:
            self.grown = counter_growth(before.counters, after.counters, has_restarted=restarted)
            self._check.add(self.grown)
            self._observe_acceptance(self.grown)
            if not several and self._check.trusts_page:
                self.steps = counted_steps(self.grown, snapshot.kv_cache_block_tokens)
        row = _row(snapshot, after)
        self._window.count(at, row, has_restarted=restarted)
        self._hour.count(at, row, has_restarted=restarted)
        shown = {phase: after.histograms[phase] for phase in snapshot.histograms}
        self._histograms.append(at, shown, has_restarted=restarted)
        if (usage := snapshot.gauges.get(Gauge.KV_CACHE_USAGE)) is not None:
            self.kv_cache.observe(at, usage)
        self.latest, self.seen_at, self._several_processes = snapshot, at, several
        self.block_tokens = snapshot.kv_cache_block_tokens
        return restarted

    def reported(self, grown: Mapping[Counter, float], tally: StepTally) -> Steps | None:
        """Steps that the plug-in reports anew; None without any.

        They include what vLLM has counted since the plug-in's last report.
        """
        if grown.get(Counter.GENERATION_TOKENS, 0.0) > grown.get(Counter.FIRST_TOKENS, 0.0):
            self._unreported = {
                name: growth + self._unreported.get(name, 0.0) for name, growth in grown.items()
            }
        steps = reported_steps(tally, self._unreported, self.block_tokens)
        if steps is not None:
            self.is_reported, self._unreported = True, {}
        return steps

    @property
    def has_counted(self) -> bool:
        """Whether a restart of its vLLM would show in its counters."""
        return self.held is not None and any(self.held.counters.values())

    @property
    def speculates(self) -> bool:
        """Whether vLLM exports the number of drafts."""
        return self.latest is not None and Counter.DRAFTS in self.latest.counters

    @property
    def untimed(self) -> Withheld | None:
        """Why the page does not time steps; None if it does."""
        if self._check.per_token:
            return Withheld.ITL_PER_TOKEN
        timed = self.latest is not None and Counter.DECODE_SECONDS in self.latest.counters
        return None if timed and not self._several_processes else Withheld.NO_STEPS

    @property
    def idle(self) -> Withheld:
        """Why there may be no steps to show."""
        if self.untimed is not None and not self.is_reported:
            return self.untimed
        return Withheld.TOO_LITTLE

    @property
    def waiting(self) -> float:
        """Requests that wait for capacity.

        vLLM before 0.20 does not say what they wait for, so all that wait.
        """
        gauges = self.latest.gauges if self.latest is not None else {}
        return gauges.get(Gauge.WAITING_FOR_CAPACITY, gauges.get(Gauge.REQUESTS_WAITING, 0.0))

    @property
    def window(self) -> Acceptance:
        """Over latency_window.

        ``requests``: at least so many got their first token in it, or are running.
        """
        return self._acceptance(self._window)

    @property
    def hour(self) -> Acceptance:
        """Over the last hour, or as much of it as is known."""
        return self._acceptance(self._hour)

    @property
    def undrafted_tokens(self) -> float:
        """Tokens decoded over latency_window, if nothing was drafted in it.

        0 if anything was drafted, or if that is unknown.
        """
        grown = _counted(self._window)
        needed = {Counter.GENERATION_TOKENS, Counter.FIRST_TOKENS}
        if grown.get(Counter.DRAFTS, 1.0) or not grown.keys() >= needed:
            return 0.0
        return max(grown[Counter.GENERATION_TOKENS] - grown[Counter.FIRST_TOKENS], 0.0)

    @property
    def cache(self) -> CacheWindow:
        """What its KV cache did over latency_window."""
        grown = _counted(self._window)
        return CacheWindow(*(grown.get(counter, math.nan) for counter in CACHE))

    def _acceptance(self, window: CounterWindow) -> Acceptance:
        grown = _counted(window)
        if not grown.keys() >= set(SPECULATION):
            return NO_DRAFTS

        drafts, draft_tokens, accepted_tokens = (grown[counter] for counter in SPECULATION)
        # before a restart perhaps more
        shown = len(self.held.accepted_per_position) if self.held else 0
        positions = (window.growth or ())[len(_COUNTED) : len(_COUNTED) + shown]

        requests = grown.get(Counter.FIRST_TOKENS)
        running = 0.0
        if self.latest is not None:
            running = self.latest.gauges.get(Gauge.REQUESTS_RUNNING, 0.0)

        return Acceptance(
            seconds=window.seconds,
            requests=None if requests is None else max(requests, running),
            drafts=drafts,
            draft_tokens=draft_tokens,
            accepted_tokens=accepted_tokens,
            accepted_per_position=() if any(map(math.isnan, positions)) else positions,
        )

    def _observe_acceptance(self, grown: Mapping[Counter, float]) -> None:
        """One observation for each poll with drafts."""
        drafted, accepted = grown.get(Counter.DRAFT_TOKENS, 0.0), grown.get(Counter.ACCEPTED_TOKENS)
        if drafted > 0 and accepted is not None:
            self.window_acceptances.observe(min(accepted / drafted, 1.0))

    @property
    def limitations(self) -> frozenset[Limitation]:
        """What its last page does not export."""
        engine = self.latest
        if engine is None:
            return frozenset()
        limited = {
            Limitation.V0_COUNTERS: Trait.OVERCOUNTED in engine.traits,
            Limitation.DIFFUSION: Trait.DIFFUSION in engine.traits,
            Limitation.NO_SPECULATION: (
                not engine.traits and Counter.DRAFT_TOKENS not in engine.counters
            ),
            Limitation.NO_POSITIONS: (
                Counter.DRAFTS in engine.counters and not engine.accepted_per_position
            ),
            Limitation.NO_REQUEST_TPOT: Phase.TPOT not in engine.histograms,
            Limitation.NO_KV_CACHE_CAPACITY: engine.kv_cache_capacity_tokens is None,
            Limitation.SEVERAL_PROCESSES: self._several_processes,
            Limitation.ITL_PER_TOKEN: bool(self._check.per_token),
        }
        return frozenset(limitation for limitation, holds in limited.items() if holds)

    @property
    def latencies(self) -> dict[Phase, Latency]:
        """Quantiles of vLLM's histograms over latency_window.

        Phases without observations are missing.
        """
        return {
            phase: known
            for phase, grown in self.histograms.items()
            if (known := latency(grown)) is not None
        }

    @property
    def histograms(self) -> dict[Phase, HistogramReading]:
        """The growth of vLLM's histograms over latency_window."""
        return self._histograms.growth


def _counted(window: CounterWindow) -> dict[Counter, float]:
    """The growth of an engine's counters, without those that vLLM does not export."""
    grown = zip(_COUNTED, window.growth or (), strict=False)
    return {counter: growth for counter, growth in grown if not math.isnan(growth)}


def _row(shown: EngineSnapshot, engine: EngineSnapshot) -> Row:
    """One row of a window: ``engine``'s counters, but NaN where the page, ``shown``, omits them."""
    positions = engine.accepted_per_position
    if not shown.accepted_per_position:
        positions = (math.nan,) * len(positions)
    counters = (
        engine.counters[counter] if counter in shown.counters else math.nan for counter in _COUNTED
    )
    return (*counters, *positions)
