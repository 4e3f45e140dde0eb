"""Merges several engines into one: those past the limit on label values become ``other``."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading

OTHER = EngineKey("other", "other")


def merge(engines: Sequence[EngineSnapshot], key: EngineKey = OTHER) -> EngineSnapshot:
    """The quantities of one or more engines under one key: sums, or the highest value for ratios."""
    capacities = [engine.kv_cache_capacity_tokens for engine in engines]
    known = [capacity for capacity in capacities if capacity is not None]
    return EngineSnapshot(
        key,
        {
            counter: value
            for counter in Counter
            if (value := _sum(e.counters.get(counter) for e in engines)) is not None
        },
        sum_by_position([(e.counters.get(Counter.DRAFTS), e.accepted_per_position) for e in engines]),
        {gauge: value for gauge in Gauge if (value := _gauge(gauge, engines)) is not None},
        {phase: reading for phase in Phase if (reading := _histogram(phase, engines)) is not None},
        sum(known) if len(known) == len(capacities) else None,
        frozenset().union(*(engine.traits for engine in engines)),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def sum_by_position(parts: Sequence[tuple[float | None, Sequence[float]]]) -> tuple[float, ...]:
    """The tokens per position, summed over the parts; a part is its drafts and its tokens per position.

    Empty if a part with drafts has no positions, since the sum would be too low.
    """
    if any(drafts and not tokens for drafts, tokens in parts):
        return ()
    return tuple(map(sum, zip_longest(*(tokens for _, tokens in parts), fillvalue=0.0)))


def _gauge(gauge: Gauge, engines: Sequence[EngineSnapshot]) -> float | None:
    known = [engine.gauges[gauge] for engine in engines if gauge in engine.gauges]
    if not known:
        return None
    return max(known) if gauge is Gauge.KV_CACHE_USAGE else sum(known)


def _histogram(phase: Phase, engines: Sequence[EngineSnapshot]) -> HistogramReading | None:
    readings = [engine.histograms[phase] for engine in engines if phase in engine.histograms]
    if not readings or len({reading.edges for reading in readings}) > 1:
        return None
    counts = tuple(map(sum, zip(*(reading.counts for reading in readings), strict=True)))
    return HistogramReading(readings[0].edges, counts)
