"""vLLM's counters, continued across its restarts so that they never decrease.

A total starts at vLLM's value, grows with it, and continues from its last value when vLLM restarts at 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

from sidecar.engine.names import Counter, Phase
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading


@dataclass(frozen=True, slots=True)
class Totals:
    """An engine's snapshot with continued counters and histograms; ``restarted``: whether vLLM restarted before it."""

    engine: EngineSnapshot
    restarted: bool


class Continuation:
    """Continues one engine's counters. Feed it every snapshot, in order."""

    def __init__(self) -> None:
        self._raw: EngineSnapshot | None = None
        self._total: EngineSnapshot | None = None

    def count_from(self, raw: EngineSnapshot) -> None:
        """Once totals exist, counts their growth from ``raw`` instead of the last snapshot; after a restart, from 0."""
        self._raw = raw

    def advance(self, raw: EngineSnapshot, *, restarted: bool | None = None) -> Totals:
        """The totals at ``raw``.

        ``restarted`` says whether the process changed. If that is unknown (None), a counter that decreased means a
        restart. In a process known to be the same, a counter that decreased adds nothing.
        """
        if self._raw is None or self._total is None:
            self._raw = self._total = raw
            return Totals(raw, restarted=False)
        if restarted is None:
            restarted = _fell(self._raw, raw)
        base = replace(raw, counters={}, accepted_per_position=(), histograms={}) if restarted else self._raw
        total = replace(
            raw,
            counters=_counters(self._total.counters, base.counters, raw.counters),
            accepted_per_position=_add(
                self._total.accepted_per_position, base.accepted_per_position, raw.accepted_per_position
            ),
            histograms=_histograms(self._total.histograms, base.histograms, raw.histograms),
        )
        # A counter missing from one page continues from its last value when it returns.
        self._raw, self._total = _filled(base, raw), _filled(self._total, total)
        return Totals(total, restarted)


def _filled(before: EngineSnapshot, now: EngineSnapshot) -> EngineSnapshot:
    return replace(
        now,
        counters={**before.counters, **now.counters},
        accepted_per_position=now.accepted_per_position or before.accepted_per_position,
        histograms={**before.histograms, **now.histograms},
    )


def _fell(before: EngineSnapshot, now: EngineSnapshot) -> bool:
    counters = any(value < before.counters.get(counter, 0) for counter, value in now.counters.items())
    return counters or any(
        phase in before.histograms and reading.count < before.histograms[phase].count
        for phase, reading in now.histograms.items()
    )


def _counters(
    total: Mapping[Counter, float], base: Mapping[Counter, float], raw: Mapping[Counter, float]
) -> dict[Counter, float]:
    return {counter: total.get(counter, 0) + max(value - base.get(counter, 0), 0) for counter, value in raw.items()}


def _add(total: tuple[float, ...], base: tuple[float, ...], raw: tuple[float, ...]) -> tuple[float, ...]:
    if not raw:
        return ()
    # A bucket that has not grown keeps its float object, since windows hold many of them.
    return tuple(t + (r - b) if r > b else t for t, b, r in zip_longest(total, base, raw, fillvalue=0.0))


def _histograms(
    total: Mapping[Phase, HistogramReading],
    base: Mapping[Phase, HistogramReading],
    raw: Mapping[Phase, HistogramReading],
) -> dict[Phase, HistogramReading]:
    carried: dict[Phase, HistogramReading] = {}
    for phase, reading in raw.items():
        before = total.get(phase)
        if before is None or before.edges != reading.edges:
            carried[phase] = reading  # new, or another version's buckets: nothing to continue
            continue
        old = base.get(phase, HistogramReading(reading.edges, ()))
        carried[phase] = HistogramReading(reading.edges, _add(before.counts, old.counts, reading.counts))
    return carried
