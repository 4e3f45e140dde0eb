"""A model's tables as rows of text: what ``report`` prints, and some of what the page shows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from sidecar.analysis.engine.cache import sum_caches
from sidecar.analysis.engine.latency import Latency
from sidecar.analysis.evidence import CONFIDENCE, Acceptance
from sidecar.analysis.report import EngineReport, ModelReport, TemperatureReport
from sidecar.analysis.split.tallies import GroupReport
from sidecar.analysis.verdict import Judgement
from sidecar.engine.names import Phase
from sidecar.settings.baselines import PlainCache
from sidecar.wording.numbers import count, counted, latency, milliseconds, percent, ratio, share
from sidecar.wording.speed import CONTEXTS, context_rows, plus_minus

_TIMES: Final = ("TTFT P50", "P95", "P99", "TPOT P50", "P95", "P99")
_TEMPERATURES: Final = (
    *("temperature", "verdict", "speedup", "acceptance", "P10", "P50", "P90"),
    *("of draft tokens", "requests", *_TIMES),
)
_NO_TIMES: Final = ("-",) * 3
# Of vLLM's histograms, not by request.
_BY_BUCKET: Final = tuple(name.replace(" ", " by bucket ") for name in _TIMES)
_ENGINES: Final = ("engine", "speculation", "acceptance", "coverage", *_BY_BUCKET)
LOWER: Final = (
    "lower acceptance rate",
    "acceptance rate",
    "below the others by",
    "share of draft tokens",
)
PRICES: Final = ("price", "with speculation", "without (baseline)")
UNDER_OTHER_TRAFFIC: Final = (
    "The baseline had prompts and a load of its own, on which hits, times to first token and"
    " preemptions depend: `specdec-sidecar compare` has them under the same requests."
)
_BY: Final = {
    "prompt_tokens": "prompts of {} tokens",
    "output": "{} output",
    "sampling": "{} sampling",
    "ending": "{} endings",
    "adapter": "adapter {}",
}

Row = Sequence[str]


def tables(model: ModelReport) -> list[tuple[Row, Sequence[Row]]]:
    """The header and the rows of each table that has any."""
    shown = [
        part for part in model.temperatures if part.window.requests or part.window.draft_tokens
    ]
    named: list[tuple[Row, Sequence[Row]]] = [
        (_TEMPERATURES, [_temperature(part) for part in shown]),
        (LOWER, lower_rows(model)),
        (_ENGINES, [_engine(engine) for engine in model.engines]),
        (PRICES, price_rows(model)),
        (CONTEXTS, context_rows(model)),
    ]
    return [(header, rows) for header, rows in named if rows]


def seen(judgement: Judgement) -> Acceptance:
    """The window that was judged or, below the gates, the recent one."""
    return judgement.judged or judgement.evidence.window


def _temperature(part: TemperatureReport) -> Row:
    return (
        part.temperature,
        part.judgement.verdict,
        plus_minus(part.speedup) if part.speedup else "-",
        ratio(seen(part.judgement).rate),
        *map(ratio, part.acceptance_quantiles.values()),
        share(part.window.share),
        count(part.window.requests),
        *map(milliseconds, (*part.ttft_quantiles.values(), *part.tpot_quantiles.values())),
    )


def lower_rows(model: ModelReport) -> list[Row]:
    """A row for each group that accepts clearly less than the model's other requests."""
    rows: list[Row] = []
    for group in model.groups:
        if group.accepts_less and (lower := group.difference) is not None:
            below = f"{-100 * lower.value:.0f} ± {100 * CONFIDENCE * lower.error:.0f} points"
            rows.append(
                (group_name(group), percent(group.window.rate), below, percent(group.window.share))
            )
    return rows


def group_name(group: GroupReport) -> str:
    """What the requests of a group have in common."""
    return _BY[group.by].format(group.group)


def _engine(engine: EngineReport) -> Row:
    how = engine.speculation
    times = engine.latencies
    return (
        engine.key.engine,
        f"{how.method}, {counted(how.num_speculative_tokens, 'token')}" if how else "-",
        ratio(seen(engine.judgement).rate),
        ratio(engine.coverage),
        *(shown_quantiles(times[Phase.TTFT], milliseconds) if Phase.TTFT in times else _NO_TIMES),
        *(shown_quantiles(times[Phase.TPOT], milliseconds) if Phase.TPOT in times else _NO_TIMES),
    )


def shown_quantiles(measured: Latency, show: Callable[[float], str]) -> list[str]:
    """P50, P95 and P99.

    In vLLM's first bucket they would be mere interpolation, so only the bucket's edge is shown.
    """
    edge = measured.resolution
    values = (measured.quantiles[share] for share in (0.5, 0.95, 0.99))
    return [f"<{show(edge)}" if seconds < edge else show(seconds) for seconds in values]


def price_rows(model: ModelReport) -> list[Row]:
    """A row for each price whose value without speculation is known; empty without a baseline."""
    return [*_cache(model), *_loads(model)] if model.speed is not None else []


def _cache(model: ModelReport) -> Iterator[Row]:
    plain = model.plain_cache or PlainCache()
    cache = sum_caches(engine.cache for engine in model.engines)
    capacity = model.kv_cache_capacity_tokens

    if plain.hit_ratio is not None:
        yield "prefix-cache hits", share(cache.hit_ratio), share(plain.hit_ratio)

    if plain.capacity_tokens is not None and capacity is not None:
        yield "KV cache of an engine, tokens", count(capacity), count(plain.capacity_tokens)
        if (each := cache.request_tokens) is not None:
            fit = count(capacity // each), count(plain.capacity_tokens // each)
            yield f"requests of {each:,.0f} tokens that fit", *fit

    if plain.preemptions_ratio is not None:
        preemptions = ratio(cache.preemptions_ratio), ratio(plain.preemptions_ratio)
        yield "preemptions per request", *preemptions


def _loads(model: ModelReport) -> Iterator[Row]:
    for load in model.loads:
        if load.first_token_seconds is not None and load.plain_first_token_seconds is not None:
            times = latency(load.first_token_seconds), latency(load.plain_first_token_seconds)
            yield f"time to first token, {load.running} running", *times
    both = [load for load in model.loads if load.tokens_per_second and load.plain_tokens_per_second]
    for load in both[-1:]:  # the highest
        speeds = count(load.tokens_per_second), count(load.plain_tokens_per_second)
        yield f"tokens a second, {load.running} running", *speeds
