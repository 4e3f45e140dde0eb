"""The engines on one page: quantities by their meaning, whatever names this vLLM version uses."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import le

from sidecar.engine.engine_key import EngineKey
from sidecar.engine.exposition import Page, Series
from sidecar.engine.layout import EngineLayout, HistogramLayout, PageLayout, page_layout
from sidecar.engine.names import SPECULATION, Counter, Gauge, Phase, Trait
from sidecar.errors import NoVllmMetrics

_NO_DRAFTS = dict.fromkeys(SPECULATION, 0.0)
_LARGEST = 1e18  # far above any real count; sums of larger values would eventually be infinite


@dataclass(frozen=True, slots=True)
class HistogramReading:
    """A cumulative histogram: ``counts[i]`` observations were at most ``edges[i]``.

    The last edge is +Inf.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]

    @property
    def count(self) -> float:
        """The number of observations."""
        return self.counts[-1]


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine's quantities at one moment.

    What its vLLM version does not export is absent, never 0. ``accepted_per_position[p]`` counts
    accepted draft tokens at position p, from 0; empty if not exported.
    """

    key: EngineKey
    counters: Mapping[Counter, float]
    accepted_per_position: tuple[float, ...]
    gauges: Mapping[Gauge, float]
    histograms: Mapping[Phase, HistogramReading]
    kv_cache_capacity_tokens: int | None
    traits: frozenset[Trait] = frozenset()
    kv_cache_block_tokens: int = 0  # 0: not exported
    created: float | None = None  # when its counters were made, Unix seconds; None: not exported

    @property
    def speculates(self) -> bool:
        """Whether vLLM exports speculation counters, usable or not.

        A vLLM that speculates does so from its start. The Rust frontend always exports them, so
        behind it this holds from the first draft on.
        """
        has_usable = any(counter in self.counters for counter in SPECULATION)
        return has_usable or Trait.OVERCOUNTED in self.traits


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """One page of ``/metrics``.

    ``process_start`` is in Unix seconds; None on a page of several processes, and on the Rust
    frontend's (``is_rust``), which has no engines until the first one has reported.
    """

    engines: tuple[EngineSnapshot, ...]
    process_start: float | None
    malformed: int  # malformed lines, histograms that are not cumulative, ids that are not read
    # An agent collects the page from several processes, and each engine has one of its own.
    shows_replicas: bool = False
    is_rust: bool = False
    # The ids of the servers whose counters it has, as our plug-in put them there. A multiprocess
    # directory that nobody wiped keeps those of earlier ones. Empty: the page has none.
    servers: frozenset[str] = frozenset()

    @property
    def is_sum(self) -> bool:
        """Whether an engine's counters are sums over several API servers."""
        is_one = self.process_start is not None or self.is_rust
        return not is_one and not self.shows_replicas

    def drafting(self, keys: Collection[EngineKey]) -> "PageSnapshot":
        """This page, given that those of its engines that ``keys`` names speculate.

        Where the page shows no drafts of theirs, there have been none: their counters are 0.
        """
        engines = tuple(
            replace(engine, counters={**_NO_DRAFTS, **engine.counters})
            if engine.key in keys and not _NO_DRAFTS.keys() <= engine.counters.keys()
            else engine
            for engine in self.engines
        )
        return self if engines == self.engines else replace(self, engines=engines)

    def keys_of(self, model_name: str, number: str) -> list[EngineKey]:
        """The engines that vLLM itself calls by this ``number``: several if they are replicas."""
        keys = [engine.key for engine in self.engines]
        return [key for key in keys if (key.model_name, key.number) == (model_name, number)]

    def key_of(self, model_name: str, number: str) -> EngineKey:
        """The engine of this ``number``; unless just one has it, a key with the bare number."""
        found = self.keys_of(model_name, number)
        if len(found) != 1:
            return EngineKey(model_name, number)

        (key,) = found
        return key


class SnapshotReader:
    """Turns one server's pages into snapshots; pages of the same series have one layout."""

    def __init__(self) -> None:
        self._series: tuple[Series, ...] = ()
        self._is_rust = False
        self._layout = PageLayout()
        # Labels that have told processes apart: the last engine that is left keeps its name.
        self._replica_labels: tuple[str, ...] = ()

    def read(self, page: Page) -> PageSnapshot:
        """The engines on a page, ordered by model and engine.

        The Rust frontend's counters of drafts are left out while all are 0, since they do not show
        that vLLM speculates. Once one of its engines has drafted, all of them are known to.

        Raises:
            NoVllmMetrics: the page has no series of a vLLM engine.
            PageTooLarge: there are more engines than any vLLM has.
        """
        if self._series is not page.series or self._is_rust != page.is_rust:
            self._layout = page_layout(page.series, self._replica_labels, is_rust=page.is_rust)
            self._replica_labels = self._layout.replica_labels
            self._series = page.series
            self._is_rust = page.is_rust

        layouts = self._layout.engines
        if not layouts and not page.is_rust:
            raise NoVllmMetrics("the page has no series of a vLLM engine")

        engines = tuple(_engine(layout, page.values) for layout in layouts)
        expected = sum(len(layout.histograms) for layout in layouts)
        contradictory = expected - sum(len(engine.histograms) for engine in engines)
        snapshot = PageSnapshot(
            engines=engines,
            process_start=_time(self._layout.process_start, page.values),
            malformed=page.malformed + contradictory + self._layout.unread_servers,
            shows_replicas=self._layout.shows_replicas,
            is_rust=page.is_rust,
            servers=self._layout.servers,
        )
        if page.is_rust and any(engine.speculates for engine in engines):
            return snapshot.drafting([engine.key for engine in engines])
        return snapshot


def _time(index: int | None, values: Sequence[float]) -> float | None:
    """The time at this index of a page's values, in Unix seconds; None if there is none."""
    if index is None or not math.isfinite(values[index]):
        return None
    return values[index]


def _engine(layout: EngineLayout, values: Sequence[float]) -> EngineSnapshot:
    counters = {}
    for counter, indices in layout.counters.items():
        value = _sum(values, indices)
        if _is_count(value):
            counters[counter] = value
    if Trait.RUST_FRONTEND in layout.traits and not any(map(counters.get, SPECULATION)):
        counters = {name: value for name, value in counters.items() if name not in SPECULATION}

    gauges = {}
    for gauge, indices in layout.gauges.items():
        value = _gauge(gauge, values, indices)
        most = 1 if gauge is Gauge.KV_CACHE_USAGE else _LARGEST
        if 0 <= value <= most:
            gauges[gauge] = value

    histograms = {}
    for phase, histogram in layout.histograms.items():
        reading = _histogram(values, histogram)
        if reading is not None:
            histograms[phase] = reading

    positions = tuple(_sum(values, indices) for indices in layout.positions)
    return EngineSnapshot(
        key=layout.key,
        counters=counters,
        accepted_per_position=positions if all(map(_is_count, positions)) else (),
        gauges=gauges,
        histograms=histograms,
        kv_cache_capacity_tokens=layout.kv_cache.capacity,
        traits=layout.traits,
        kv_cache_block_tokens=layout.kv_cache.block,
        created=_time(layout.created, values),
    )


def _is_count(value: float) -> bool:
    return 0 <= value <= _LARGEST


def _sum(values: Sequence[float], indices: tuple[int, ...]) -> float:
    if len(indices) == 1:
        return values[indices[0]]
    return sum(values[index] for index in indices)  # not fsum, which raises on opposite infinities


def _gauge(gauge: Gauge, values: Sequence[float], indices: tuple[int, ...]) -> float:
    if gauge is Gauge.KV_CACHE_USAGE:
        # Every process exports the engine's value; idle ones show an old value, or 0.
        return max(values[index] for index in indices)
    return _sum(values, indices)


def _histogram(values: Sequence[float], layout: HistogramLayout) -> HistogramReading | None:
    counts = tuple([_sum(values, indices) for indices in layout.buckets])
    is_cumulative = all(map(le, counts, counts[1:]))
    is_possible = counts[0] >= 0 and counts[-1] <= _LARGEST  # neither holds for NaN
    return HistogramReading(layout.edges, counts) if is_cumulative and is_possible else None
