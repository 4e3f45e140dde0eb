"""What presses on a model's requests, in numbers: KV cache, latency gap, first token, queue."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sidecar.analysis.engine.latency import Latency, gap_growth
from sidecar.analysis.history import Quantity
from sidecar.analysis.pressure import pressure
from sidecar.analysis.report import ModelReport
from sidecar.engine.names import Phase
from sidecar.wording.numbers import latency, percent
from sidecar.wording.tables import shown_quantiles


class Tile(NamedTuple):
    """A number with its name, and what it is to be read with."""

    name: str
    number: str
    beside: str
    quantity: Quantity  # of which the last hour is known


def tiles(model: ModelReport) -> Iterator[Tile]:
    """Each of the engine where it is worst; those that are not known are left out."""
    worst = pressure(model)
    if worst.kv_cache_peak is not None:
        capacity = model.kv_cache_capacity_tokens
        tokens = "" if capacity is None else f"of {capacity:,} tokens"
        yield Tile("KV cache, peak", percent(worst.kv_cache_peak), tokens, Quantity.KV_CACHE)

    if worst.per_token is not None:
        half, _, most = shown_quantiles(worst.per_token, latency)
        gap = gap_text(worst.per_token, model.plain_latencies.get(Phase.TPOT, {}))
        yield Tile("P99 - P50 per token", gap, f"{half} to {most}, by bucket", Quantity.GAP)

    if worst.first_token is not None:
        half, _, most = shown_quantiles(worst.first_token, latency)
        yield Tile("First token, P99", most, f"P50 {half}, by bucket", Quantity.FIRST_TOKEN)

    if worst.waiting is not None:
        running = f"{worst.running:,.0f} running"
        yield Tile("Waiting", f"{worst.waiting:,.0f}", running, Quantity.WAITING)


def gap_text(measured: Latency, baseline: Mapping[float, float]) -> str:
    """P99 - P50, and how it has grown against the ``baseline`` by quantile, if there is one."""
    growth = gap_growth(measured, baseline)
    if measured.gap_seconds is None:
        gap = shown_quantiles(measured, latency)[-1]
    else:
        gap = latency(measured.gap_seconds)
    return gap if growth is None else f"{gap} ({growth:.1f} times the baseline)"
