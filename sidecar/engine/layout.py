"""Where each engine's quantities are on vLLM's page.

Worked out once for all pages with the same series, and applied at every poll.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sidecar.engine import names
from sidecar.engine.engine_key import EngineKey, EngineNames
from sidecar.engine.exposition import Series
from sidecar.engine.names import Counter, Gauge, Phase, Trait
from sidecar.errors import PageTooLarge

# Pairs of model and engine on a page, at most; four times the maximum of ``limits.engines``.
_MOST_ENGINES = 256
_DIGITS = 15  # at most; Python refuses to parse integers of several thousand digits
# Ids of servers on a page, at most: each start of vLLM leaves one in a multiprocess directory that
# nobody wipes.
MOST_SERVERS = 1024
MOST_ID_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class HistogramLayout:
    """``buckets[i]`` are the indices whose values add up to the count at ``edges[i]``.

    The last edge is +Inf.
    """

    edges: tuple[float, ...]
    buckets: tuple[tuple[int, ...], ...]


class KvCache(NamedTuple):
    """The size of the KV cache and of one of its blocks, in tokens.

    None and 0 if vLLM does not export them.
    """

    capacity: int | None = None
    block: int = 0


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """Indices into a page's values. A counter with several is their sum, one for each process."""

    key: EngineKey
    counters: Mapping[Counter, tuple[int, ...]]
    positions: tuple[tuple[int, ...], ...]
    gauges: Mapping[Gauge, tuple[int, ...]]
    histograms: Mapping[Phase, HistogramLayout]
    kv_cache: KvCache
    traits: frozenset[Trait]
    # The index of the time its counters were created; None on a page of several processes.
    created: int | None


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Where everything is on a page of one shape.

    ``process_start`` is the index of the time at which the engines' process started; None if they
    belong to several processes.
    """

    engines: tuple[EngineLayout, ...] = ()
    process_start: int | None = None
    shows_replicas: bool = False  # see ``PageSnapshot``
    replica_labels: tuple[str, ...] = ()  # see ``EngineNames``
    servers: frozenset[str] = frozenset()  # see ``PageSnapshot``
    unread_servers: int = 0  # ids left out: too many, too long or empty


@dataclass(frozen=True, slots=True)
class _Sample:
    index: int
    labels: Mapping[str, str]


_Samples = Mapping[str, list[_Sample]]  # of one engine, by name without prefix


class _Named(NamedTuple):
    """One of vLLM's series: its index on the page, and its name without the prefix."""

    place: int
    prefix: str
    name: str
    series: Series


def page_layout(
    page: Sequence[Series], replica_labels: tuple[str, ...] = (), *, is_rust: bool = False
) -> PageLayout:
    """The layout of a page; without engines if it has no vLLM series.

    ``replica_labels`` have told engines apart on earlier pages of the same server. ``is_rust`` is
    as in ``Page``.

    Raises:
        PageTooLarge: more than ``_MOST_ENGINES`` engines.
    """
    found = _vllm_series(page)
    is_collected = any(names.is_collected(one.prefix) for one in found)
    engine_names = EngineNames(
        (one.series for one in found if one.name != names.CACHE_CONFIG),
        is_collected=is_collected,
        known=replica_labels,
    )

    by_engine: dict[EngineKey, dict[str, list[_Sample]]] = defaultdict(lambda: defaultdict(list))
    caches: dict[str | None, set[KvCache]] = defaultdict(set)
    for one in found:
        labels = dict(one.series.labels)
        if one.name == names.CACHE_CONFIG:  # has no model_name, and no engine either before 0.9
            engine = engine_names.engine(labels) if "engine" in labels else None
            caches[engine].add(_kv_cache(labels))
        elif "model_name" in labels:
            by_engine[engine_names.key(labels)][one.name].append(_Sample(one.place, labels))
            if len(by_engine) > _MOST_ENGINES:
                raise PageTooLarge(f"more than {_MOST_ENGINES} pairs of model and engine")

    traits = frozenset({Trait.RUST_FRONTEND} if is_rust else ())
    engines = tuple(
        _engine_layout(
            key, by_engine[key], _agreed(caches.get(key.engine) or caches.get(None)), traits
        )
        for key in sorted(by_engine, key=_order)
    )
    numbers = {(key.model_name, key.number) for key in by_engine}
    shows_replicas = is_collected or len(numbers) < len(by_engine)
    servers, unread_servers = _servers(page)
    return PageLayout(
        engines=engines,
        process_start=None if shows_replicas else _process_start(page),
        shows_replicas=shows_replicas,
        replica_labels=engine_names.replica_labels,
        servers=servers,
        unread_servers=unread_servers,
    )


def _vllm_series(page: Sequence[Series]) -> list[_Named]:
    """The series with one of vLLM's prefixes, in the page's order."""
    found = []
    for index, series in enumerate(page):
        prefix, name = names.split(series.name)
        if prefix:
            found.append(_Named(index, prefix, name, series))
    return found


def _servers(page: Sequence[Series]) -> tuple[frozenset[str], int]:
    """The ids of servers on a page, and how many others are left out."""
    ids = {dict(series.labels).get("id", "") for series in page if series.name == names.SERVER}
    usable = sorted(one for one in ids if 0 < len(one) <= MOST_ID_CHARACTERS)[:MOST_SERVERS]
    return frozenset(usable), len(ids) - len(usable)


def _order(key: EngineKey) -> tuple[str, int, str]:
    return key.model_name, _whole(key.number) or 0, key.engine


def _process_start(page: Sequence[Series]) -> int | None:
    """The index of the process's start time or, without it, of the time it created a counter.

    None if the page has neither, as with several processes.
    """
    starts: list[int] = []
    created: list[int] = []
    for index, series in enumerate(page):
        _, name = names.split(series.name)
        if series.name == names.PROCESS_START:
            starts.append(index)
        elif name == names.CREATED:
            created.append(index)

    if len(starts) == 1:
        return starts[0]
    if created and not starts:
        return created[0]
    return None


def _agreed(caches: set[KvCache] | None) -> KvCache:
    """The KV cache if there is just one, otherwise an unknown one.

    With several, nothing on the page says which model each belongs to.
    """
    if caches is None or len(caches) != 1:
        return KvCache()

    (cache,) = caches
    return cache


def _engine_layout(
    key: EngineKey, samples: _Samples, kv_cache: KvCache, page_traits: frozenset[Trait]
) -> EngineLayout:
    counters = {counter: _indices(samples, counter.candidates) for counter in Counter}
    gauges = {gauge: _gauge_indices(samples, gauge.candidates) for gauge in Gauge}
    by_reason = samples.get(names.WAITING_BY_REASON, [])
    gauges[Gauge.WAITING_FOR_CAPACITY] = _with_label(by_reason, "reason", names.CAPACITY)
    sleep_states = samples.get(names.SLEEP_STATE, [])
    gauges[Gauge.AWAKE] = _with_label(sleep_states, "sleep_state", names.AWAKE)
    histograms = {phase: _histogram(samples, phase.candidates) for phase in Phase}

    traits = set(page_traits)
    if counters[Counter.DRAFT_TOKENS] and not counters[Counter.DRAFTS]:
        # Only V0 counts tokens but no drafts, and it adds its totals again at every log interval.
        counters |= dict.fromkeys(names.SPECULATION, ())
        traits.add(Trait.OVERCOUNTED)

    if names.DIFFUSION in samples:
        traits.add(Trait.DIFFUSION)

    created = samples.get(names.CREATED, [])
    return EngineLayout(
        key=key,
        counters={counter: indices for counter, indices in counters.items() if indices},
        positions=_positions(samples.get(names.ACCEPTED_PER_POSITION, [])),
        gauges={gauge: indices for gauge, indices in gauges.items() if indices},
        histograms={phase: one for phase, one in histograms.items() if one is not None},
        kv_cache=kv_cache,
        traits=frozenset(traits),
        created=created[0].index if len(created) == 1 else None,
    )


def _indices(samples: _Samples, candidates: Iterable[str]) -> tuple[int, ...]:
    first = next((samples[name] for name in candidates if name in samples), [])
    return tuple(sample.index for sample in first)


def _gauge_indices(samples: _Samples, candidates: tuple[str, ...]) -> tuple[int, ...]:
    """Like ``_indices``, but prefers a candidate without the label ``pid``.

    Most samples with that label are stale (vLLM 0.9.2 to 0.11.0).
    """
    shared = [
        name for name in candidates if name in samples and "pid" not in samples[name][0].labels
    ]
    return _indices(samples, shared or candidates)


def _with_label(samples: Iterable[_Sample], label: str, value: str) -> tuple[int, ...]:
    """The indices of the samples that have this value of a label."""
    return tuple(sample.index for sample in samples if sample.labels.get(label) == value)


def _positions(samples: list[_Sample]) -> tuple[tuple[int, ...], ...]:
    """The indices for each position from 0; empty if one is missing in between."""
    by_position: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        position = _whole(sample.labels.get("position", ""))
        if position is not None:
            by_position[position].append(sample.index)

    positions = sorted(by_position)
    if positions != list(range(len(positions))):
        return ()
    return tuple(tuple(by_position[position]) for position in positions)


def _histogram(samples: _Samples, candidates: Iterable[str]) -> HistogramLayout | None:
    """The first candidate that is complete, that is, has a +Inf bucket."""
    for name in candidates:
        by_edge: dict[float, list[int]] = defaultdict(list)
        for sample in samples.get(name + "_bucket", []):
            edge = _edge(sample.labels.get("le", ""))
            if edge is not None:
                by_edge[edge].append(sample.index)

        if float("inf") in by_edge:
            edges = tuple(sorted(by_edge))
            buckets = tuple(tuple(by_edge[edge]) for edge in edges)
            return HistogramLayout(edges, buckets)

    return None


def _kv_cache(config: Mapping[str, str]) -> KvCache:
    """The KV cache by the labels of ``cache_config_info``.

    vLLM exports the capacity from 0.32 on; before, it is the number of blocks times their size.
    """
    tokens = _whole(config.get("kv_cache_size_tokens", ""))
    blocks = _whole(config.get("num_gpu_blocks", ""))
    size = _whole(config.get("block_size", ""))
    if tokens is None and blocks is not None and size is not None:
        tokens = blocks * size
    return KvCache(capacity=tokens, block=size or 0)


def _whole(text: str) -> int | None:
    """A whole number that a float can represent; None if the text is something else."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def _edge(text: str) -> float | None:
    """A bucket's upper edge, in seconds; None if the text is not a number above 0."""
    try:
        edge = float(text)
    except ValueError:
        return None
    return edge if edge > 0 and "_" not in text else None
