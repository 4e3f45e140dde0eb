"""Merges snapshots into one: those of several engines, or an engine's past and present."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final, TypeVar

from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Counter, Gauge, Phase, Trait
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading

OTHER_ENGINES: Final = EngineKey("other", "other")
"""The key of all engines past the limit on label values."""

_Quantity = TypeVar("_Quantity", Counter, Gauge)


def merge(engines: Sequence[EngineSnapshot], key: EngineKey = OTHER_ENGINES) -> EngineSnapshot:
    """The quantities of one or more engines under one key: sums; for ratios, the highest value."""
    positions = sum_by_position(
        (engine.counters.get(Counter.DRAFTS), engine.accepted_per_position) for engine in engines
    )
    traits = frozenset[Trait]().union(*(engine.traits for engine in engines))

    return EngineSnapshot(
        key=key,
        counters=_merged(Counter, [engine.counters for engine in engines]),
        accepted_per_position=positions,
        gauges=_merged(Gauge, [engine.gauges for engine in engines]),
        histograms=_merged_histograms(engines),
        kv_cache_capacity_tokens=_summed_capacity(engines),
        traits=traits,
    )


def sum_by_position(parts: Iterable[tuple[float | None, Sequence[float]]]) -> tuple[float, ...]:
    """The tokens per position, summed over the parts.

    A part has the number of its drafts, and its tokens per position. The result is empty if a part
    with drafts has no positions, since the sum would be too low.
    """
    known = []
    for drafts, tokens in parts:
        if drafts and not tokens:
            return ()
        known.append(tokens)

    return tuple(sum(position) for position in zip_longest(*known, fillvalue=0.0))


def hold_counters(before: EngineSnapshot, now: EngineSnapshot) -> EngineSnapshot:
    """The engine as ``now``, but a counter that is missing or below ``before`` keeps that value.

    Both are of the same vLLM process, within which no exported counter may fall.
    """
    counters = dict(before.counters)
    for counter, value in now.counters.items():
        counters[counter] = max(before.counters.get(counter, 0), value)

    histograms = {**before.histograms, **now.histograms}
    for phase, reading in now.histograms.items():
        old = before.histograms.get(phase)
        if old is not None and old.edges == reading.edges:
            counts = _highest(old.counts, reading.counts)
            histograms[phase] = HistogramReading(reading.edges, counts)

    return replace(
        now,
        counters=counters,
        accepted_per_position=_highest(before.accepted_per_position, now.accepted_per_position),
        histograms=histograms,
    )


def _merged(
    kind: Iterable[_Quantity], engines: Sequence[Mapping[_Quantity, float]]
) -> dict[_Quantity, float]:
    merged = {}
    for quantity in kind:
        values = [engine[quantity] for engine in engines if quantity in engine]
        if values:
            is_ratio = quantity is Gauge.KV_CACHE_USAGE
            merged[quantity] = max(values) if is_ratio else sum(values)
    return merged


def _merged_histograms(engines: Sequence[EngineSnapshot]) -> dict[Phase, HistogramReading]:
    merged = {}
    for phase in Phase:
        readings = [engine.histograms[phase] for engine in engines if phase in engine.histograms]
        reading = _merged_histogram(readings)
        if reading is not None:
            merged[phase] = reading
    return merged


def _merged_histogram(readings: Sequence[HistogramReading]) -> HistogramReading | None:
    """None if there is none, or if their buckets differ."""
    different = {reading.edges for reading in readings}
    if len(different) != 1:
        return None

    (edges,) = different
    buckets = zip(*(reading.counts for reading in readings), strict=True)
    return HistogramReading(edges, tuple(sum(bucket) for bucket in buckets))


def _summed_capacity(engines: Sequence[EngineSnapshot]) -> int | None:
    """The capacity of the KV caches in tokens; None if one is unknown."""
    total = 0
    for engine in engines:
        if engine.kv_cache_capacity_tokens is None:
            return None
        total += engine.kv_cache_capacity_tokens
    return total


def _highest(before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, ...]:
    # A value that has not grown stays the same float object: windows hold many of them.
    if len(before) == len(now):
        return tuple(map(max, before, now))
    return tuple(max(old, new) for old, new in zip_longest(before, now, fillvalue=0.0))
