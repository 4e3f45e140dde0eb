"""What presses on a model's requests, in numbers: KV cache, latency gap, first token, queue."""

from collections.abc import Iterator
from typing import NamedTuple

from sidecar.analysis.engine.latency import Latency, gap_growth
from sidecar.analysis.history import Quantity
from sidecar.analysis.pressure import pressure
from sidecar.analysis.report import ModelReport
from sidecar.engine.names import Phase
from sidecar.settings.baselines import PlainLatency
from sidecar.wording.numbers import latency, percent
from sidecar.wording.tables import shown_quantiles, shown_range


class Tile(NamedTuple):
    """A number with its name, and what it is to be read with."""

    name: str
    number: str
    beside: str
    quantity: Quantity  # of which the last hour is known


def tiles(model: ModelReport) -> Iterator[Tile]:
    """Each of the engine where it is worst; those that are not known are left out."""
    worst = pressure(model)
    whose = ", worst engine" if len(model.engines) > 1 else ""
    if worst.kv_cache_peak is not None:
        capacity = model.kv_cache_capacity_tokens
        tokens = "" if capacity is None else f"of {capacity:,} tokens"
        yield Tile(
            f"KV cache, peak{whose}", percent(worst.kv_cache_peak), tokens, Quantity.KV_CACHE
        )

    if worst.per_token is not None:
        half, _, most = shown_quantiles(worst.per_token, latency)
        gap = gap_text(worst.per_token, model.plain_latencies.get(Phase.TPOT))
        beside = f"P50 {half}, P99 {most}{_source(worst.per_token)}"
        yield Tile(f"TPOT, P99 - P50{whose}", gap, beside, Quantity.GAP)

    if worst.first_token is not None:
        half, _, most = shown_quantiles(worst.first_token, latency)
        beside = f"P50 {half}{_source(worst.first_token)}"
        yield Tile(f"TTFT, P99{whose}", most, beside, Quantity.FIRST_TOKEN)

    if worst.waiting is not None:
        running = f"{worst.running:,.0f} running now"
        yield Tile("Waiting", f"{worst.waiting:,.0f}", running, Quantity.WAITING)


def _source(measured: Latency) -> str:
    return "" if measured.is_exact else " (vLLM's buckets)"


def gap_text(measured: Latency, baseline: PlainLatency | None) -> str:
    """P99 - P50, and how it has grown against the ``baseline``, as far as that is known."""
    known = measured.gap_range
    gap = shown_range(known, latency)
    growth = gap_growth(measured, baseline)
    is_exact = known.least == known.most and baseline is not None and baseline.is_exact
    if growth is None or not (is_exact or growth > 1):
        return gap
    return f"{gap} ({'' if is_exact else 'at least '}{growth:.1f} times the baseline)"
