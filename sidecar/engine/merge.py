"""Makes one snapshot of an engine from two or more.

They are of several engines, or of one engine's past and present.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

from sidecar.engine.identity import EngineKey
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading

OTHER = EngineKey("other", "other")  # engines past the limit on label values
_Quantity = TypeVar("_Quantity", Counter, Gauge)


def merge(engines: Sequence[EngineSnapshot], key: EngineKey = OTHER) -> EngineSnapshot:
    """The quantities of one or more engines under one key: sums; for ratios, the highest value."""
    capacities = [engine.kv_cache_capacity_tokens for engine in engines]
    known = [capacity for capacity in capacities if capacity is not None]
    return EngineSnapshot(
        key,
        _merged(Counter, [engine.counters for engine in engines]),
        sum_by_position(
            [
                (engine.counters.get(Counter.DRAFTS), engine.accepted_per_position)
                for engine in engines
            ]
        ),
        _merged(Gauge, [engine.gauges for engine in engines]),
        {
            phase: reading
            for phase in Phase
            if (reading := _merged_histogram(phase, engines)) is not None
        },
        sum(known) if len(known) == len(capacities) else None,
        frozenset().union(*(engine.traits for engine in engines)),
    )


def sum_by_position(parts: Sequence[tuple[float | None, Sequence[float]]]) -> tuple[float, ...]:
    """The tokens per position, summed over the parts.

    A part is its drafts and its tokens per position. Empty if a part with drafts has no positions,
    since the sum would be too low.
    """
    if any(drafts and not tokens for drafts, tokens in parts):
        return ()
    return tuple(map(sum, zip_longest(*(tokens for _, tokens in parts), fillvalue=0.0)))


def held(before: EngineSnapshot, now: EngineSnapshot) -> EngineSnapshot:
    """The engine as ``now``, in the same vLLM process as ``before``.

    A counter that fell or is missing is held. So within one process of vLLM, a counter never falls.
    """
    counters = {
        counter: max(before.counters.get(counter, 0), value)
        for counter, value in now.counters.items()
    }

    histograms = {**before.histograms, **now.histograms}
    for phase, reading in now.histograms.items():
        old = before.histograms.get(phase)
        if old is not None and old.edges == reading.edges:
            counts = _highest(old.counts, reading.counts)
            histograms[phase] = HistogramReading(reading.edges, counts)

    return replace(
        now,
        counters={**before.counters, **counters},
        accepted_per_position=_highest(before.accepted_per_position, now.accepted_per_position),
        histograms=histograms,
    )


def _merged(
    kind: Iterable[_Quantity], engines: Sequence[Mapping[_Quantity, float]]
) -> dict[_Quantity, float]:
    known = {
        quantity: [engine[quantity] for engine in engines if quantity in engine]
        for quantity in kind
    }
    return {
        quantity: max(values) if quantity is Gauge.KV_CACHE_USAGE else sum(values)
        for quantity, values in known.items()
        if values
    }


def _merged_histogram(phase: Phase, engines: Sequence[EngineSnapshot]) -> HistogramReading | None:
    readings = [engine.histograms[phase] for engine in engines if phase in engine.histograms]
    if not readings or len({reading.edges for reading in readings}) > 1:
        return None
    counts = tuple(map(sum, zip(*(reading.counts for reading in readings), strict=True)))
    return HistogramReading(readings[0].edges, counts)


def _highest(before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, ...]:
    # One that has not grown keeps its float object, since windows hold many of them.
    return tuple(max(old, new) for old, new in zip_longest(before, now, fillvalue=0.0))
