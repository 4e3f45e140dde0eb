"""Where each engine's quantities are on a page.

Computed once per page shape, applied at every poll.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sidecar.engine import names
from sidecar.engine.exposition import Series
from sidecar.engine.names import Counter, Gauge, Phase, Trait
from sidecar.errors import PageTooLarge

# Pairs of model and engine on a page; four times the maximum of ``limits.engines``.
_MOST_ENGINES = 256
_DIGITS = 15  # at most; Python refuses to parse integers of several thousand digits
_NO_ENGINE = "0"  # V0 and the first V1 versions have one engine and no label for it


class EngineKey(NamedTuple):
    """Which engine of which model; versions without an ``engine`` label have one engine, "0"."""

    model_name: str
    engine: str


@dataclass(frozen=True, slots=True)
class HistogramPlan:
    """``buckets[i]`` are the indices whose values add up to the count at ``edges[i]``.

    The last edge is +Inf.
    """

    edges: tuple[float, ...]
    buckets: tuple[tuple[int, ...], ...]


class KvCache(NamedTuple):
    """The KV cache's size and that of a block of it, in tokens.

    None and 0 where vLLM does not export them.
    """

    capacity: int | None = None
    block: int = 0


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Indices into a page's values; if a counter has several, each is one process's share of it."""

    key: EngineKey
    counters: Mapping[Counter, tuple[int, ...]]
    positions: tuple[tuple[int, ...], ...]
    gauges: Mapping[Gauge, tuple[int, ...]]
    histograms: Mapping[Phase, HistogramPlan]
    kv_cache: KvCache
    traits: frozenset[Trait]


@dataclass(frozen=True, slots=True)
class _Sample:
    index: int
    labels: Mapping[str, str]


def engine_plans(page: Sequence[Series]) -> tuple[EnginePlan, ...]:
    """One plan per engine, ordered by model and engine; empty if the page has no vLLM series.

    Raises:
        PageTooLarge: more than ``_MOST_ENGINES`` engines.
    """
    by_engine: dict[EngineKey, dict[str, list[_Sample]]] = defaultdict(lambda: defaultdict(list))
    caches: dict[str | None, set[KvCache]] = defaultdict(set)
    for index, series in enumerate(page):
        prefix, name = names.split(series.name)
        sample = _Sample(index, dict(series.labels))
        if not prefix:
            continue
        if name == names.CACHE_CONFIG:  # has no model_name, and no engine either before 0.9
            caches[sample.labels.get("engine")].add(_kv_cache(sample.labels))
        elif "model_name" in sample.labels:
            key = EngineKey(sample.labels["model_name"], sample.labels.get("engine", _NO_ENGINE))
            by_engine[key][name].append(sample)
            if len(by_engine) > _MOST_ENGINES:
                raise PageTooLarge(f"more than {_MOST_ENGINES} pairs of model and engine")
    return tuple(
        _engine_plan(key, by_engine[key], _agreed(caches.get(key.engine) or caches.get(None)))
        for key in sorted(
            by_engine, key=lambda key: (key.model_name, _whole(key.engine) or 0, key.engine)
        )
    )


def process_start(page: Sequence[Series]) -> int | None:
    """The index of the process start time, or else of the time at which it created a counter.

    None if there is neither, as on pages of several processes.
    """
    starts = [index for index, series in enumerate(page) if series.name == names.PROCESS_START]
    created = [
        index for index, series in enumerate(page) if names.split(series.name)[1] == names.CREATED
    ]
    if len(starts) == 1:
        return starts[0]
    return created[0] if created and not starts else None


def _agreed(caches: set[KvCache] | None) -> KvCache:
    """The KV cache, if all agree; else an unknown one.

    If they differ, nothing on the page says which model each belongs to.
    """
    return next(iter(caches)) if caches is not None and len(caches) == 1 else KvCache()


def _engine_plan(
    key: EngineKey, samples: Mapping[str, list[_Sample]], kv_cache: KvCache
) -> EnginePlan:
    counters = {counter: _indices(samples, counter.candidates) for counter in Counter}
    traits = set()
    if counters[Counter.DRAFT_TOKENS] and not counters[Counter.DRAFTS]:
        # Only V0 counts tokens but no drafts, and it adds its totals again at every log interval.
        counters |= dict.fromkeys(names.SPECULATION, ())
        traits.add(Trait.OVERCOUNTED)
    if names.DIFFUSION in samples:
        traits.add(Trait.DIFFUSION)
    gauges = {gauge: _gauge_indices(samples, gauge.candidates) for gauge in Gauge}
    by_reason = samples.get(names.WAITING_BY_REASON, [])
    gauges[Gauge.WAITING_FOR_CAPACITY] = _with_label(by_reason, "reason", names.CAPACITY)
    sleep_states = samples.get(names.SLEEP_STATE, [])
    gauges[Gauge.AWAKE] = _with_label(sleep_states, "sleep_state", names.AWAKE)
    histograms = {phase: _histogram(samples, phase.candidates) for phase in Phase}
    return EnginePlan(
        key,
        {counter: indices for counter, indices in counters.items() if indices},
        _positions(samples.get(names.ACCEPTED_PER_POSITION, [])),
        {gauge: indices for gauge, indices in gauges.items() if indices},
        {phase: plan for phase, plan in histograms.items() if plan is not None},
        kv_cache,
        frozenset(traits),
    )


def _indices(samples: Mapping[str, list[_Sample]], candidates: Iterable[str]) -> tuple[int, ...]:
    first = next((samples[name] for name in candidates if name in samples), [])
    return tuple(sample.index for sample in first)


def _gauge_indices(
    samples: Mapping[str, list[_Sample]], candidates: tuple[str, ...]
) -> tuple[int, ...]:
    """Like ``_indices``, but prefers a candidate without ``pid``.

    Most with one are stale (0.9.2 to 0.11.0).
    """
    shared = [
        name for name in candidates if name in samples and "pid" not in samples[name][0].labels
    ]
    return _indices(samples, shared or candidates)


def _with_label(samples: Iterable[_Sample], label: str, value: str) -> tuple[int, ...]:
    """The indices of the samples that have this value of a label."""
    return tuple(sample.index for sample in samples if sample.labels.get(label) == value)


def _positions(samples: list[_Sample]) -> tuple[tuple[int, ...], ...]:
    by_position: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        position = _whole(sample.labels.get("position", ""))
        if position is not None:
            by_position[position].append(sample.index)
    positions = sorted(by_position)
    if positions != list(range(len(positions))):
        return ()
    return tuple(tuple(by_position[position]) for position in positions)


def _histogram(
    samples: Mapping[str, list[_Sample]], candidates: Iterable[str]
) -> HistogramPlan | None:
    """The first candidate that is complete, that is, has a +Inf bucket."""
    for name in candidates:
        by_edge: dict[float, list[int]] = defaultdict(list)
        for sample in samples.get(name + "_bucket", []):
            edge = _edge(sample.labels.get("le", ""))
            if edge is not None:
                by_edge[edge].append(sample.index)
        if float("inf") in by_edge:
            edges = tuple(sorted(by_edge))
            return HistogramPlan(edges, tuple(tuple(by_edge[edge]) for edge in edges))
    return None


def _kv_cache(config: Mapping[str, str]) -> KvCache:
    """The capacity is exported since 0.32; before, it is the number of blocks times their size."""
    tokens = _whole(config.get("kv_cache_size_tokens", ""))
    blocks = _whole(config.get("num_gpu_blocks", ""))
    size = _whole(config.get("block_size", ""))
    if tokens is None and blocks is not None and size is not None:
        tokens = blocks * size
    return KvCache(tokens, size or 0)


def _whole(text: str) -> int | None:
    """A whole number that a float can represent."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def _edge(text: str) -> float | None:
    """A bucket's upper edge; None if it is no number, or not above 0 as every latency is."""
    try:
        edge = float(text)
    except ValueError:
        return None
    return edge if edge > 0 and "_" not in text else None
