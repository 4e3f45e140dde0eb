"""What speculation takes and gives apart from the time per token, beside the baseline's, as rows of text."""

from collections.abc import Iterator
from typing import Final

from sidecar.analysis.engine.cache import sum_caches
from sidecar.analysis.report import ModelReport
from sidecar.settings.baselines import PlainCache
from sidecar.wording.numbers import count, latency, ratio, share

PRICES: Final = ("price", "with speculation", "without (baseline)")
UNDER_OTHER_TRAFFIC: Final = (
    "The baseline had prompts and a load of its own, on which hits, times to first token and preemptions depend: "
    "`specdec-sidecar compare` has them under the same requests."
)

Row = tuple[str, str, str]


def price_rows(model: ModelReport) -> list[Row]:
    """A row for each price whose value without speculation is known; empty without a baseline."""
    return [*_cache(model), *_loads(model)] if model.speed is not None else []


def _cache(model: ModelReport) -> Iterator[Row]:
    plain, cache = model.plain_cache or PlainCache(), sum_caches(engine.cache for engine in model.engines)
    capacity = model.kv_cache_capacity_tokens
    if plain.hit_ratio is not None:
        yield "prefix-cache hits", share(cache.hit_ratio), share(plain.hit_ratio)
    if plain.capacity_tokens is not None and capacity is not None:
        yield "KV cache of an engine, tokens", count(capacity), count(plain.capacity_tokens)
        if (each := cache.request_tokens) is not None:
            fit = count(capacity // each), count(plain.capacity_tokens // each)
            yield f"requests of {each:,.0f} tokens that fit", *fit
    if plain.preemptions_ratio is not None:
        yield "preemptions per request", ratio(cache.preemptions_ratio), ratio(plain.preemptions_ratio)


def _loads(model: ModelReport) -> Iterator[Row]:
    for load in model.loads:
        if load.first_token_seconds is not None and load.plain_first_token_seconds is not None:
            times = latency(load.first_token_seconds), latency(load.plain_first_token_seconds)
            yield f"time to first token, {load.running} running", *times
    both = [load for load in model.loads if load.tokens_per_second and load.plain_tokens_per_second]
    for load in both[-1:]:  # the highest
        speeds = count(load.tokens_per_second), count(load.plain_tokens_per_second)
        yield f"tokens a second, {load.running} running", *speeds
