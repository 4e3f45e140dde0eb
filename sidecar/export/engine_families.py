"""One engine's samples."""

from collections.abc import Iterable

from sidecar.analysis.engine_state import EngineReport
from sidecar.analysis.latency import Latency
from sidecar.analysis.limitation import Limitation
from sidecar.engine.names import Counter, Gauge
from sidecar.export import metrics
from sidecar.export.families import Families

_COUNTERS = {
    Counter.DRAFTS: metrics.ENGINE_DRAFTS,
    Counter.DRAFT_TOKENS: metrics.ENGINE_DRAFT_TOKENS,
    Counter.ACCEPTED_TOKENS: metrics.ENGINE_ACCEPTED_TOKENS,
    Counter.GENERATION_TOKENS: metrics.GENERATION_TOKENS,
    Counter.PROMPT_TOKENS: metrics.PROMPT_TOKENS,
    Counter.PREEMPTIONS: metrics.PREEMPTIONS,
    Counter.PREFIX_CACHE_QUERIES: metrics.PREFIX_CACHE_QUERIES,
    Counter.PREFIX_CACHE_HITS: metrics.PREFIX_CACHE_HITS,
}
_GAUGES = {
    Gauge.REQUESTS_RUNNING: metrics.REQUESTS_RUNNING,
    Gauge.REQUESTS_WAITING: metrics.REQUESTS_WAITING,
    Gauge.KV_CACHE_USAGE: metrics.KV_CACHE_USAGE,
    Gauge.LIFETIME_ACCEPTANCE: metrics.ENGINE_LIFETIME_ACCEPTANCE,
}


def add_engine(families: Families, engine: EngineReport, limitations: Iterable[Limitation], max_positions: int) -> None:
    """Adds what is known of one engine; accepted tokens past ``max_positions`` go under position ``other``."""
    for counter, metric in _COUNTERS.items():
        families.add(metric, engine.counters.get(counter), *engine.key)
    families.add_positions(
        metrics.ENGINE_ACCEPTED_PER_POSITION, engine.accepted_per_position, max_positions, *engine.key
    )
    for gauge, metric in _GAUGES.items():
        families.add(metric, engine.gauges.get(gauge), *engine.key)
    families.add(metrics.KV_CACHE_PEAK, engine.kv_cache_peak, *engine.key)
    families.add(metrics.KV_CACHE_CAPACITY, engine.kv_cache_capacity_tokens, *engine.key)
    if engine.kv_cache_usages.count:  # each poll of an engine that tells its usage is one
        families.add_histogram(metrics.KV_CACHE_SAMPLED, engine.kv_cache_usages, *engine.key)
    if Counter.DRAFT_TOKENS in engine.counters:
        families.add_histogram(metrics.ENGINE_WINDOW_ACCEPTANCE, engine.window_acceptances, *engine.key)
    for phase, latency in engine.latencies.items():
        _add_latency(families, (*engine.key, phase), latency)
    for limitation in sorted(limitations):
        families.add(metrics.ENGINE_LIMITATION, 1, *engine.key, limitation)


def _add_latency(families: Families, labels: tuple[str, ...], latency: Latency) -> None:
    for quantile, seconds in latency.quantiles.items():
        families.add(metrics.ENGINE_LATENCY, seconds, *labels, str(quantile))
    families.add(metrics.ENGINE_LATENCY_GAP, latency.gap_seconds, *labels)
    families.add(metrics.ENGINE_LATENCY_GAP_RATIO, latency.gap_ratio, *labels)
