"""The state of one engine according to vLLM's page: takes one snapshot per poll, gives a report."""

import math
from collections.abc import Mapping
from typing import Final

from sidecar.analysis.acceptance import NO_DRAFTS, Acceptance
from sidecar.analysis.engine_speed import LoadTotals
from sidecar.analysis.histogram import WINDOW_EDGES, Histogram
from sidecar.analysis.kv_cache import KvCacheUsage
from sidecar.analysis.latency import latency
from sidecar.analysis.limitation import limitations
from sidecar.analysis.report import EngineReport
from sidecar.analysis.speedup import EngineSpeed, Withheld
from sidecar.analysis.steps import StepCheck, Steps, counted_steps, growth
from sidecar.analysis.verdict import Judgement
from sidecar.engine.held import fell, held
from sidecar.engine.histograms import HistogramWindow
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading
from sidecar.engine.window import HOUR, CounterWindow, Row
from sidecar.requests.messages import Speculation
from sidecar.settings import Settings

_COUNTED: Final = (Counter.FIRST_TOKENS, Counter.DRAFTS, Counter.DRAFT_TOKENS, Counter.ACCEPTED_TOKENS)


class EngineState:
    """One engine's totals, windows and distributions; bounded whatever vLLM sends."""

    def __init__(self, key: EngineKey, settings: Settings) -> None:
        self.key = key
        self._window_seconds = settings.latency_window
        self._kv_cache = KvCacheUsage(settings.kv_peak_window)
        self._window_acceptances = Histogram(WINDOW_EDGES)
        self.restart_windows()
        self._latest: EngineSnapshot | None = None
        self._several_processes = False
        self._check = StepCheck()
        self.loads = LoadTotals()
        self.is_reported = False  # whether the plug-in has reported steps
        self.grown: Mapping[Counter, float] | None = None  # growth of vLLM's counters between the last two polls
        self.steps: Steps | None = None  # between the last two polls; None if the page does not show them
        self.seen_at = 0.0
        self.block_tokens = 0  # the size of a block of its KV cache; 0 if unknown
        self.process_start: float | None = None  # of the process that the last snapshot came from

    def restart_windows(self) -> None:
        """Takes the next snapshot as the first: what it has counted is not growth. Distributions go on."""
        self._histograms = HistogramWindow(self._window_seconds)
        self._window, self._hour = CounterWindow(self._window_seconds), CounterWindow(HOUR)
        self.held: EngineSnapshot | None = None  # the last snapshot, with counters that never fell

    def observe(self, at: float, snapshot: EngineSnapshot, *, restarted: bool | None, several: bool) -> bool:
        """Takes in a poll at ``at``, Unix seconds; returns whether vLLM restarted before it.

        ``restarted`` says whether the process changed. If that is unknown (None), a counter that fell means a restart.
        ``several``: the page is the sum of several API servers.
        """
        before = self.held
        if restarted is None:
            restarted = before is not None and fell(before, snapshot)
        self.held = after = snapshot if before is None or restarted else held(before, snapshot)
        self.grown = self.steps = None
        if restarted:
            self._check = StepCheck()
        if before is not None and self.seen_at < at:
            self.grown = growth(before.counters, after.counters, has_restarted=restarted)
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
            self._kv_cache.observe(at, usage)
        self._latest, self.seen_at, self._several_processes = snapshot, at, several
        self.block_tokens = snapshot.kv_cache_block_tokens
        return restarted

    @property
    def has_counted(self) -> bool:
        """Whether a restart of its vLLM would show in its counters."""
        return self.held is not None and any(self.held.counters.values())

    @property
    def speculates(self) -> bool:
        """Whether vLLM exports the number of drafts."""
        return self._latest is not None and Counter.DRAFTS in self._latest.counters

    @property
    def untimed(self) -> Withheld | None:
        """Why the page does not time steps; None if it does."""
        if self._check.per_token:
            return Withheld.ITL_PER_TOKEN
        timed = self._latest is not None and Counter.DECODE_SECONDS in self._latest.counters
        return None if timed and not self._several_processes else Withheld.NO_STEPS

    @property
    def idle(self) -> Withheld:
        """Why there may be no steps to show."""
        return self.untimed if self.untimed is not None and not self.is_reported else Withheld.TOO_LITTLE

    @property
    def window(self) -> Acceptance:
        """Over latency_window; requests are those that got their first token in it or are still running."""
        return self._acceptance(self._window)

    @property
    def hour(self) -> Acceptance:
        """Over the last hour, or as much of it as is known."""
        return self._acceptance(self._hour)

    def _acceptance(self, window: CounterWindow) -> Acceptance:
        grown = window.growth or ()
        requests, *speculation = grown[: len(_COUNTED)] if grown else (math.nan,) * len(_COUNTED)
        if any(map(math.isnan, speculation)):
            return NO_DRAFTS
        drafts, draft_tokens, accepted_tokens = speculation
        positions = grown[len(_COUNTED) :]
        running = self._latest.gauges.get(Gauge.REQUESTS_RUNNING, 0.0) if self._latest is not None else 0.0
        return Acceptance(
            seconds=window.seconds,
            requests=None if math.isnan(requests) else requests + running,
            drafts=drafts,
            draft_tokens=draft_tokens,
            accepted_tokens=accepted_tokens,
            accepted_per_position=() if any(map(math.isnan, positions)) else positions,
        )

    def _observe_acceptance(self, grown: Mapping[Counter, float]) -> None:
        """One observation for each poll with drafts."""
        drafted, accepted = grown.get(Counter.DRAFT_TOKENS, 0.0), grown.get(Counter.ACCEPTED_TOKENS)
        if drafted > 0 and accepted is not None:
            self._window_acceptances.observe(min(accepted / drafted, 1.0))

    def report(
        self,
        now: float,
        *,
        fresh: bool,
        judgement: Judgement,
        speed: EngineSpeed | None,
        speculation: Speculation | None,
        coverage: float | None,
    ) -> EngineReport:
        """The engine at ``now``; includes current values only if the last poll is ``fresh``.

        ``speculation`` and ``coverage`` come from the plug-in.
        """
        latest = self._latest if fresh else None
        window = self.window if latest else NO_DRAFTS
        latencies = {phase: one for phase, grown in self.histograms.items() if (one := latency(grown)) is not None}
        return EngineReport(
            key=self.key,
            counters=self.held.counters if self.held is not None else {},
            accepted_per_position=self.held.accepted_per_position if self.held is not None else (),
            kv_cache_usages=self._kv_cache.distribution.snapshot(),
            window_acceptances=self._window_acceptances.snapshot(),
            loads=self.loads.report({}) if self.is_reported or self.untimed is None else (),
            judgement=judgement,
            gauges=latest.gauges if latest else {},
            kv_cache_peak=self._kv_cache.peak(now) if latest else None,
            kv_cache_capacity_tokens=latest.kv_cache_capacity_tokens if latest else None,
            latencies=latencies if latest else {},
            acceptance=window if window.draft_tokens > 0 else None,
            limitations=limitations(
                latest, several_processes=self._several_processes, itl_per_token=bool(self._check.per_token)
            )
            if latest
            else frozenset(),
            speed=speed if latest else None,
            speculation=speculation,
            coverage=coverage if latest else None,
        )

    @property
    def histograms(self) -> dict[Phase, HistogramReading]:
        """The growth of vLLM's histograms over latency_window."""
        grown = {phase: self._histograms.growth(phase) for phase in Phase}
        return {phase: known for phase, known in grown.items() if known is not None}


def _row(shown: EngineSnapshot, engine: EngineSnapshot) -> Row:
    """One row of a window: ``engine``'s counters, but NaN where the page (``shown``) leaves them out."""
    positions = (
        engine.accepted_per_position if shown.accepted_per_position else (math.nan,) * len(engine.accepted_per_position)
    )
    counters = (engine.counters[counter] if counter in shown.counters else math.nan for counter in _COUNTED)
    return (*counters, *positions)
