"""vLLM's counters as they are, but for one rule: within one process of vLLM a counter never falls."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest

from sidecar.engine.names import Phase
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading


def held(before: EngineSnapshot, now: EngineSnapshot) -> EngineSnapshot:
    """The engine as ``now``, in the same process of vLLM as ``before``: a counter that fell or is missing is held."""
    return replace(
        now,
        counters={
            **before.counters,
            **{key: max(before.counters.get(key, 0), new) for key, new in now.counters.items()},
        },
        accepted_per_position=_highest(before.accepted_per_position, now.accepted_per_position),
        histograms={**before.histograms, **_histograms(before.histograms, now.histograms)},
    )


def fell(before: EngineSnapshot, now: EngineSnapshot) -> bool:
    """Whether any counter or histogram is lower than before: vLLM has restarted, or its page is wrong."""
    counters = any(value < before.counters.get(counter, 0) for counter, value in now.counters.items())
    return counters or any(
        phase in before.histograms and reading.count < before.histograms[phase].count
        for phase, reading in now.histograms.items()
    )


def _highest(before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, ...]:
    # One that has not grown keeps its float object, since windows hold many of them.
    return tuple(max(old, new) for old, new in zip_longest(before, now, fillvalue=0.0))


def _histograms(
    before: Mapping[Phase, HistogramReading], now: Mapping[Phase, HistogramReading]
) -> dict[Phase, HistogramReading]:
    return {
        phase: HistogramReading(reading.edges, _highest(before[phase].counts, reading.counts))
        if phase in before and before[phase].edges == reading.edges
        else reading
        for phase, reading in now.items()
    }
