"""The state of one engine according to vLLM's page: takes one snapshot per poll."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from sidecar.analysis.certainty.past import Counted, PastWatch
from sidecar.analysis.distributions import WINDOW_EDGES, Histogram
from sidecar.analysis.engine.cache import CacheWindow
from sidecar.analysis.engine.engine_window import EngineWindow
from sidecar.analysis.engine.kv_cache_usage import KvCacheUsage
from sidecar.analysis.engine.latency import Latency, latency
from sidecar.analysis.engine.polled_load import PolledLoadWindow
from sidecar.analysis.engine.request_times import RequestTimes
from sidecar.analysis.evidence import NO_DRAFTS, Acceptance
from sidecar.analysis.speed.speedup import LoadTotals
from sidecar.analysis.speed.steps import Prefill, Steps, counter_growth, reported_steps
from sidecar.analysis.split.life import NO_STEPS, LifeSteps
from sidecar.analysis.windows.counters import HistogramWindow
from sidecar.analysis.windows.growth import HOUR
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.merge import hold_counters
from sidecar.engine.names import SPECULATION, Counter, Gauge, Phase, Trait
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading
from sidecar.settings import Settings

_IMPRECISION: Final = 0.02  # of counters that are read one after the other
_SINGLE_TOKENS: Final = 64.0


class Limitation(StrEnum):
    """The label value of ``specdec_engine_limitation``; what each means is in ``wording``."""

    V0_COUNTERS = "v0_counters"
    NO_SPECULATION = "no_speculation"
    DIFFUSION = "diffusion"
    NO_REQUEST_TPOT = "no_request_tpot"
    NO_POSITIONS = "no_positions"
    NO_KV_CACHE_CAPACITY = "no_kv_cache_capacity"
    SEVERAL_PROCESSES = "several_processes"
    RUST_FRONTEND = "rust_frontend"
    NOTHING_DRAFTED = "nothing_drafted"  # and the counters of drafts do not say that it speculates
    SEVERAL_SENDERS = "several_senders"
    CONTRADICTORY_COUNTERS = "contradictory_counters"


WITHOUT_SPECULATION: Final = frozenset({Limitation.NO_SPECULATION, Limitation.NOTHING_DRAFTED})
"""An engine with one of these is not known to speculate, and is taken for a plain one."""


class EngineState:
    """One engine's totals, windows and distributions; bounded whatever vLLM sends."""

    def __init__(self, key: EngineKey, settings: Settings) -> None:
        self.key = key
        self._window_seconds = settings.latency_window
        self.kv_cache = KvCacheUsage(settings.kv_peak_window)
        self.polled_load = PolledLoadWindow()
        self.window_acceptances = Histogram(WINDOW_EDGES)
        self.restart_windows()
        self.latest: EngineSnapshot | None = None
        self.is_sum = False  # whether its counters are sums over several API servers
        self._contradicts_itself = False  # whether more tokens were accepted than drafted
        self.loads = LoadTotals()
        self.has_steps = False  # whether a plug-in has told any
        self.await_steps()

        # share of the requests with a prefix-cache hit whose last block is computed again
        self.drops_block = 0.5
        self._prefill = Prefill()  # between the last two polls
        # what a decoding request holds by the plug-in's last sample, in tokens, and when it was
        self._sampled_context: float | None = None
        self._sampled_at = -math.inf

        # growth of vLLM's counters between the last two polls; ``counted`` is that of its drafts
        self.grown: Mapping[Counter, float] | None = None
        self.counted = Counted()
        self.seen_at = 0.0
        self.block_tokens = 0  # the size of a block of its KV cache; 0 if unknown

    def restart_windows(self) -> None:
        """Takes the next snapshot as the first: what it has counted is not growth.

        Distributions go on.
        """
        self._histograms = HistogramWindow(self._window_seconds)
        self.times = RequestTimes(self._window_seconds)  # as its plug-in tells them
        # by phase, what the histograms have counted between the last two polls
        self._observed: Mapping[Phase, float] = {}
        self._window = EngineWindow(self._window_seconds)
        self._hour = EngineWindow(HOUR)
        self.past = PastWatch()
        self.held: EngineSnapshot | None = None  # the last snapshot, with counters that never fell

    def judge_from(self, at: float) -> None:
        """Acceptance before ``at``, the last poll's time, is in no window."""
        self._window = EngineWindow(self._window_seconds)
        self._hour = EngineWindow(HOUR)
        self.past = PastWatch()
        self.past.mark(at)
        self.counted = Counted()
        if self.latest is not None and self.held is not None:
            for window in (self._window, self._hour):
                window.add(at, self.latest, self.held, has_restarted=False)

    def _begin_to_speculate(self) -> None:
        """Takes what was seen of an engine that was not known to speculate for no drafts.

        What it decoded before is in no window.
        """
        held = self.held
        if held is None or held.speculates:
            return

        self.held = replace(held, counters={**dict.fromkeys(SPECULATION, 0.0), **held.counters})
        self.latest = self.held
        self.judge_from(self.seen_at)

    def observe(
        self, at: float, snapshot: EngineSnapshot, *, has_restarted: bool, is_sum: bool
    ) -> None:
        """Takes in a poll at ``at``, Unix seconds.

        ``has_restarted``: the engine's counters have started again at 0 since the last poll.
        ``is_sum``: they are sums over several API servers.
        """
        if snapshot.speculates and not has_restarted:
            self._begin_to_speculate()
        before = self.held
        after = snapshot if before is None or has_restarted else hold_counters(before, snapshot)
        self.held = after

        if has_restarted:
            self.await_steps()
            self.polled_load = PolledLoadWindow()  # it may have speculated until then

        self.grown = None
        self.counted = Counted()
        if before is not None and self.seen_at < at:
            grown = counter_growth(before.counters, after.counters, has_restarted=has_restarted)
            self.grown = grown
            self._observe_acceptance(grown)
            self.counted = self._counted(grown)
            self._prefill = self._prefill_of(grown, snapshot)

        self.past.grow(self.counted)
        self.past.mark(at, snapshot.gauges.get(Gauge.REQUESTS_RUNNING, 0.0))
        self._window.add(at, snapshot, after, has_restarted=has_restarted)
        self._hour.add(at, snapshot, after, has_restarted=has_restarted)

        shown = {phase: after.histograms[phase] for phase in snapshot.histograms}
        self._histograms.append(at, shown, has_restarted=has_restarted)
        known = before.histograms if before is not None and not has_restarted else {}
        self._observed = {
            phase: reading.count - (known[phase].count if phase in known else 0.0)
            for phase, reading in shown.items()
        }

        if not snapshot.speculates:  # only the checklist asks for it
            self.polled_load.observe(at, snapshot.gauges)
        usage = snapshot.gauges.get(Gauge.KV_CACHE_USAGE)
        if usage is not None:
            self.kv_cache.observe(at, usage)

        self.latest = snapshot
        self.seen_at = at
        self.is_sum = is_sum
        positions = len(after.accepted_per_position)
        self._contradicts_itself = any(
            _accepts_more_than_it_drafts(counters, per_position)
            for counters, per_position in (
                (after.counters, after.accepted_per_position),
                *(
                    (window.counters, window.accepted_per_position(positions))
                    for window in (self._window, self._hour)
                ),
            )
        )
        self.block_tokens = snapshot.kv_cache_block_tokens

    def _prefill_of(self, grown: Mapping[Counter, float], snapshot: EngineSnapshot) -> Prefill:
        """What is known of prefill since the last poll; a mean that is not new stays."""
        seconds = self._prefill.seconds
        queue = self._prefill.queue_seconds
        if grown.get(Counter.PREFILLED) and Counter.PREFILL_SECONDS in grown:
            seconds = grown[Counter.PREFILL_SECONDS] / grown[Counter.PREFILLED]
            queue = grown.get(Counter.QUEUE_SECONDS, 0.0) / grown[Counter.PREFILLED]

        return Prefill(
            seconds=seconds,
            queue_seconds=queue,
            block=snapshot.kv_cache_block_tokens,
            drops_block=self.drops_block,
        )

    def context(self, at: float) -> float | None:
        """The tokens that a decoding request holds, on average, at a poll's time.

        By the plug-in's sample or, from the page alone, the mean prompt and half of the mean
        output. None if unknown.
        """
        if self._sampled_context is not None and at - self._sampled_at <= self._window_seconds:
            return self._sampled_context

        recent = self.cache
        if not recent.requests > 0 and self.held is not None:  # long generations: since the start
            recent = CacheWindow.of(self.held.counters)
        if not recent.requests > 0:
            return None

        tokens = (recent.prompt_tokens + recent.generated_tokens / 2) / recent.requests
        return None if math.isnan(tokens) or tokens <= 0 else tokens

    def await_steps(self) -> None:
        """No plug-in counts steps, or it begins anew: what vLLM has counted so far is of none."""
        self._told = NO_STEPS  # without any decoding so far
        self._untold: Mapping[Counter, float] = {}  # of vLLM's counters, since the last steps

    def reported(self, told: LifeSteps) -> Steps | None:
        """What was decoded by the steps that the plug-in tells anew; None if nothing.

        It includes what vLLM has counted, and any steps of prefill, since there were such steps
        last.
        """
        if told.decoding.context_tokens and told.decoding.decodes:
            self._sampled_context = told.decoding.context_tokens / told.decoding.decodes
            self._sampled_at = self.seen_at
        if self.grown is None:  # its first page: what is told may be from before it
            return None

        self._told += told
        self._untold = {
            name: growth + self._untold.get(name, 0.0) for name, growth in self.grown.items()
        }
        steps = reported_steps(self._told, self._untold, self._prefill)
        if steps is not None:
            self.has_steps = True
            self.await_steps()
        return steps

    @property
    def speculates(self) -> bool:
        """Whether vLLM exports the number of drafts."""
        return self.latest is not None and Counter.DRAFTS in self.latest.counters

    @property
    def running(self) -> float:
        """Requests that were running at the last poll."""
        return self.latest.gauges.get(Gauge.REQUESTS_RUNNING, 0.0) if self.latest else 0.0

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
        grown = self._window.counters
        needed = {Counter.GENERATION_TOKENS, Counter.FIRST_TOKENS}
        if grown.get(Counter.DRAFTS, 1.0) or not grown.keys() >= needed:
            return 0.0

        return max(grown[Counter.GENERATION_TOKENS] - grown[Counter.FIRST_TOKENS], 0.0)

    @property
    def cache(self) -> CacheWindow:
        """What its KV cache did over latency_window."""
        return CacheWindow.of(self._window.counters)

    def _acceptance(self, window: EngineWindow) -> Acceptance:
        grown = window.counters
        if not grown.keys() >= set(SPECULATION) or self._contradicts_itself:
            return NO_DRAFTS

        # Those that run have got their first token, perhaps before the window began.
        requests = grown.get(Counter.FIRST_TOKENS)
        if requests is not None:
            requests = max(requests, self.running)

        positions = 0 if self.held is None else len(self.held.accepted_per_position)
        return Acceptance(
            seconds=window.seconds,
            requests=requests,
            drafts=grown[Counter.DRAFTS],
            draft_tokens=grown[Counter.DRAFT_TOKENS],
            accepted_tokens=grown[Counter.ACCEPTED_TOKENS],
            accepted_per_position=window.accepted_per_position(positions),
        )

    def _counted(self, grown: Mapping[Counter, float]) -> Counted:
        """Nothing where the page does not tell, or contradicts itself."""
        if not grown.keys() >= set(SPECULATION) or self._contradicts_itself:
            return Counted()
        return Counted(
            grown.get(Counter.FIRST_TOKENS, 0.0),
            grown[Counter.DRAFT_TOKENS],
            grown[Counter.ACCEPTED_TOKENS],
        )

    def _observe_acceptance(self, grown: Mapping[Counter, float]) -> None:
        """One observation for each poll with drafts."""
        drafted = grown.get(Counter.DRAFT_TOKENS, 0.0)
        accepted = grown.get(Counter.ACCEPTED_TOKENS)
        if drafted > 0 and accepted is not None and not self._contradicts_itself:
            self.window_acceptances.observe(min(accepted / drafted, 1.0))

    @property
    def limitations(self) -> frozenset[Limitation]:
        """What its last page does not export."""
        engine = self.latest
        if engine is None:
            return frozenset()

        is_rust = Trait.RUST_FRONTEND in engine.traits
        has_none = Counter.DRAFT_TOKENS not in engine.counters
        limited = {
            Limitation.V0_COUNTERS: Trait.OVERCOUNTED in engine.traits,
            Limitation.DIFFUSION: Trait.DIFFUSION in engine.traits,
            Limitation.NO_SPECULATION: has_none and not engine.traits,
            Limitation.NOTHING_DRAFTED: has_none and is_rust,
            # The Rust frontend shows a series once it has counted something.
            Limitation.NO_POSITIONS: (
                Counter.DRAFTS in engine.counters
                and not (is_rust and not engine.counters[Counter.DRAFTS])
                and not engine.accepted_per_position
            ),
            Limitation.NO_REQUEST_TPOT: Phase.TPOT not in engine.histograms and not is_rust,
            Limitation.NO_KV_CACHE_CAPACITY: engine.kv_cache_capacity_tokens is None,
            Limitation.SEVERAL_PROCESSES: self.is_sum,
            Limitation.RUST_FRONTEND: is_rust,
            Limitation.CONTRADICTORY_COUNTERS: self._contradicts_itself,
        }
        return frozenset(limitation for limitation, holds in limited.items() if holds)

    @property
    def latencies(self) -> dict[Phase, Latency]:
        """Quantiles over latency_window, of the phases of which vLLM has any observations.

        By the requests' own times where the plug-in tells nearly all, else from vLLM's histograms.
        """
        return {
            phase: known for phase in self.histograms if (known := self.latency(phase)) is not None
        }

    def latency(self, phase: Phase) -> Latency | None:
        """One phase's."""
        grown = self.histograms.get(phase)
        if grown is None:
            return None
        late = self._observed.get(phase, 0.0)
        return self.times.latency(phase, grown, late) or latency(grown)

    @property
    def histograms(self) -> dict[Phase, HistogramReading]:
        """The growth of vLLM's histograms over latency_window."""
        return self._histograms.growth


def _accepts_more_than_it_drafts(
    counters: Mapping[Counter, float], per_position: Sequence[float]
) -> bool:
    """Whether accepted tokens exceed the drafted ones, or those of one position the drafts."""
    accepted = counters.get(Counter.ACCEPTED_TOKENS, 0.0)
    return _exceeds(accepted, counters.get(Counter.DRAFT_TOKENS)) or _exceeds(
        max(per_position, default=0.0), counters.get(Counter.DRAFTS)
    )


def _exceeds(part: float, whole: float | None) -> bool:
    """Whether it does by more than a page's own imprecision: they are not of the same moment."""
    return whole is not None and part - whole > max(_IMPRECISION * whole, _SINGLE_TOKENS)
