"""Why speculation loses, or what would make it gain more: each finding with its evidence.

All are about one model. Pure: a finding follows from the model's report and its finished requests.
No two explain the same loss.
"""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from math import sqrt
from typing import Final

from sidecar.analysis.advice import Direction, Finding, FindingCode
from sidecar.analysis.engine.cache import sum_caches
from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.analysis.split.strata import Cell, Difference, Sums, total
from sidecar.analysis.split.tallies import GREEDY, NO_ADAPTER
from sidecar.analysis.verdict import Verdict
from sidecar.engine.methods import (
    drafts_with_a_model,
    drops_last_block,
    honours_draft_sampling,
    is_mtp,
)
from sidecar.engine.names import Gauge
from sidecar.requests.messages import OTHER, Speculation, Table
from sidecar.settings.groups import Thresholds

# share of the hot draft tokens up to which the draft's sampling can be the cause
_MOST_FILTERED: Final = 0.5
_ENOUGH_TOKENS: Final = 1000  # decoded without a draft
_ENOUGH_STEPS: Final = 1000  # at a load
_DROPPED: Final = 0.05  # share of the prompt tokens from which on dropped blocks matter
_PREEMPTED: Final = 0.01  # preemptions per request from which on they matter
_TAKEN: Final = 0.05  # share of the KV cache from which on the draft's part matters

_CAUSES: Final[dict[tuple[str, str], FindingCode]] = {
    (Table.OUTPUT, "structured"): FindingCode.STRUCTURED_OUTPUT,
    (Table.SAMPLING, "filtered"): FindingCode.SAMPLING,
    (Table.SAMPLING, "penalties"): FindingCode.SAMPLING,
}


def findings(
    model: ModelReport, sampling: Mapping[Cell, Sums], forbidden: int, thresholds: Thresholds
) -> tuple[Finding, ...]:
    """The findings on a model, the most expensive first.

    ``sampling`` has the finished requests of the window by temperature and how their tokens are
    chosen; ``forbidden`` are the tokens that structured requests without any draft decoded.
    """
    faults = [*_not_speculating(model)]
    if model.judgement.has_collapsed:
        collapse = Finding(code=FindingCode.MISMATCH, value=model.judgement.acceptance, cost=1.0)
        return (*faults, collapse)

    hot = _greedy_drafting(model, sampling, thresholds.min_requests)
    # An engine's requests may be those of a group. Draft sampling and filters both explain hot
    # requests.
    part = _one_engine(model) or _group(model, forbidden, without_sampling=hot is not None)
    rates = [finding for finding in (hot, part) if finding is not None]

    number = _load(model) or _number_of_tokens(model)
    if number is not None and (hot is not None or any(number.cost <= rate.cost for rate in rates)):
        # what lowers the acceptance rate comes first: the number of draft tokens follows from it
        number = None

    losses = sorted([*rates, *([number] if number else [])], key=lambda finding: -finding.cost)
    # those on the cache and on room cost no step
    return (*faults, *losses, *_prefix_cache(model, thresholds), *_room(model, thresholds))


def _not_speculating(model: ModelReport) -> Iterable[Finding]:
    """A model is loaded to draft, the engine decodes, and nothing is drafted.

    No schedule explains it.
    """
    quiet = {
        engine.key.engine: engine.undrafted_tokens
        for engine in model.engines
        if engine.undrafted_tokens >= _ENOUGH_TOKENS
        and engine.speculation is not None
        and drafts_with_a_model(engine.speculation.method)
        and _fewest_tokens(engine.speculation)
    }

    if quiet:
        yield Finding(
            code=FindingCode.NOT_SPECULATING,
            where=tuple(quiet),
            value=sum(quiet.values()),
            cost=1.0,
        )


def _fewest_tokens(speculation: Speculation) -> int:
    """The smallest number of draft tokens at any load."""
    scheduled = [tokens for *_, tokens in speculation.schedule]
    return min([speculation.num_speculative_tokens, *scheduled])


def _greedy_drafting(
    model: ModelReport, sampling: Mapping[Cell, Sums], min_requests: int
) -> Finding | None:
    """The draft model picks its likeliest token although hot requests sample.

    They accept clearly less than requests at T 0.
    """
    speculation = model.judgement.evidence.speculation
    if speculation is None or not _drafts_by_argmax(speculation):
        return None

    rates = {
        label: total(sums for (temperature, _), sums in sampling.items() if temperature == label)
        for label in (part.temperature for part in model.temperatures if part.temperature != OTHER)
    }
    cold, hot = rates.pop(GREEDY, Sums()), total(rates.values())
    filtered = total(
        sums for (label, way), sums in sampling.items() if label in rates and way == "filtered"
    )
    are_few = min(cold.requests, hot.requests) < max(min_requests, 2)
    if are_few or filtered.drafted > _MOST_FILTERED * hot.drafted:
        return None

    difference = Difference(hot.rate, cold.rate, sqrt(hot.variance + cold.variance), hot.drafted)
    if not difference.is_clearly_lower:
        return None
    where = tuple(label for label, sums in rates.items() if sums.requests >= min_requests)
    return _lower(model, FindingCode.GREEDY_DRAFTING, where, difference)


def _drafts_by_argmax(speculation: Speculation) -> bool:
    """Whether the draft's likeliest token is always drafted although vLLM could sample it.

    vLLM 0.22 and later can.
    """
    return (
        speculation.draft_sample_method == "greedy"
        and honours_draft_sampling(speculation.method)
        and speculation.rejection_sample_method in {None, "standard"}
        and not (
            speculation.local_argmax
            or speculation.heterogeneous_vocab
            or speculation.adaptive_verification
        )
    )


def _one_engine(model: ModelReport) -> Finding | None:
    """One engine alone accepts less, at the same temperatures and prompt lengths."""
    lower = [
        engine
        for engine in model.engines
        if engine.difference is not None and engine.difference.is_clearly_lower
    ]
    if len(lower) != 1 or lower[0].difference is None:
        return None
    return _lower(model, FindingCode.ONE_ENGINE, (lower[0].key.engine,), lower[0].difference)


def _group(model: ModelReport, forbidden: int, *, without_sampling: bool) -> Finding | None:
    """The most expensive of the groups that accept less at the same temperatures."""
    lengths = [
        group
        for group in model.groups
        if group.by == Table.PROMPT_TOKENS and group.difference is not None
    ]
    # no longer prompts accept more
    long = takewhile(lambda group: group.accepts_less, reversed(lengths[1:]))

    causes = [(group, _CAUSES.get((group.by, group.group))) for group in model.groups]
    causes += [(group, FindingCode.LONG_PROMPTS) for group in long]
    causes += [
        (group, FindingCode.ADAPTER)
        for group in model.groups
        if group.by == Table.ADAPTER and group.group not in {NO_ADAPTER, OTHER}
    ]

    lower = [
        _lower(model, code, (group.group,), group.difference)
        for group, code in causes
        if code is not None
        and group.difference is not None
        and group.difference.is_clearly_lower
        and not (without_sampling and code is FindingCode.SAMPLING)
    ]
    is_undrafted = any(part.without_drafts for part in model.groups if part.group == "structured")
    if forbidden >= _ENOUGH_TOKENS and is_undrafted:
        lower.append(_forbidden(model, forbidden))
    return max(lower, key=lambda finding: finding.cost, default=None)


def _forbidden(model: ModelReport, tokens: int) -> Finding:
    """Structured output whose grammar forbids every draft token, so that vLLM counts none.

    Answers of one token are not meant.
    """
    window = model.judgement.evidence.window
    length = window.length or 1.0
    cost = tokens / (tokens + window.drafts * length) * (1 - 1 / length)

    return Finding(
        code=FindingCode.STRUCTURED_OUTPUT,
        where=("structured",),
        value=0.0,
        other=window.rate,
        cost=cost,
    )


def _lower(
    model: ModelReport, code: FindingCode, where: tuple[str, ...], difference: Difference
) -> Finding:
    drafted = sum(
        engine.acceptance.draft_tokens for engine in model.engines if engine.acceptance is not None
    )
    share = min(difference.drafted / drafted, 1.0) if drafted else 0.0
    window = model.judgement.evidence.window
    length = window.draft_tokens / window.drafts if window.drafts else 1.0
    rate, others = difference.rate, difference.others
    cost = share * (1 - (1 + length * rate) / (1 + length * others))
    return Finding(
        code=code, where=where, value=rate, other=others, error=difference.error, cost=cost
    )


def _load(model: ModelReport) -> Finding | None:
    """Speculation loses at the load of the window, and pays with fewer requests running."""
    speed = model.speed
    if speed is None or speed.speedup is None or speed.steps is None:
        return None
    if model.judgement.by_speedup is not Verdict.NET_NEGATIVE:
        return None

    ratio, error, running = speed.speedup.ratio, speed.speedup.error, speed.steps.running
    for load in model.loads:  # from low to high
        is_lower = load.highest is not None and load.highest < running
        is_known = is_lower and load.steps >= _ENOUGH_STEPS
        if is_known and load.plain_seconds and load.actual_seconds:
            pays = load.plain_seconds / load.actual_seconds
            if pays * (1 - CONFIDENCE * error / ratio) > 1:
                where = (load.running, f"{running:.0f}")
                return Finding(
                    code=FindingCode.LOAD,
                    where=where,
                    value=ratio,
                    other=pays,
                    error=error,
                    cost=1 - ratio,
                )

    return None


def _number_of_tokens(model: ModelReport) -> Finding | None:
    """Another number of draft tokens would be better: by time if known, else by acceptance."""
    tokens = model.advice.tokens if model.advice is not None else None
    if tokens is None:
        return None

    are_few = tokens.direction is Direction.MORE
    code = FindingCode.TOO_FEW_TOKENS if are_few else FindingCode.TOO_MANY_TOKENS
    if tokens.best_seconds is None or tokens.now_seconds is None:
        return Finding(code=code, value=tokens.acceptance, other=tokens.next_rate)

    cost = 1 - tokens.best_seconds / tokens.now_seconds
    return Finding(code=code, value=tokens.now_seconds, other=tokens.best_seconds, cost=cost)


def _prefix_cache(model: ModelReport, thresholds: Thresholds) -> Iterable[Finding]:
    """The last block of each prefix-cache hit is dropped.

    These blocks are a large part of what requests look up. How many requests hit is not known: at
    most all, and no more than blocks were found. A hit of one block is lost.
    """
    engines = [engine for engine in model.engines if _drops(engine)]
    cache = sum_caches(engine.cache for engine in engines)
    ratio = cache.hit_ratio
    if ratio is None or cache.requests < thresholds.min_requests:
        return

    last_blocks = sum(engine.cache.requests * engine.kv_cache_block_tokens for engine in engines)
    dropped = min(last_blocks / cache.queries, ratio, 1 - ratio)
    if dropped >= _DROPPED:
        block = max(engine.kv_cache_block_tokens for engine in engines)
        yield Finding(
            code=FindingCode.PREFIX_CACHE, where=(f"{block:,}",), value=ratio, other=ratio + dropped
        )


def _drops(engine: EngineReport) -> bool:
    speculation = engine.speculation
    if speculation is None or speculation.keeps_last_block:
        return False
    return drops_last_block(speculation.method) and engine.configuration.prefix_caching is not False


def _room(model: ModelReport, thresholds: Thresholds) -> Iterable[Finding]:
    """Requests wait or are preempted because the KV cache is full.

    The draft takes a share of it.
    """
    pressed = tuple(
        engine.key.engine for engine in model.engines if _is_pressed(engine, thresholds)
    )
    if not pressed:
        return
    less, share = _less_than_plain(model), _share_of_layers(model)
    if (less if less is not None else share or 0.0) >= _TAKEN:
        yield Finding(code=FindingCode.ROOM, where=pressed, value=less, other=share)


def _is_pressed(engine: EngineReport, thresholds: Thresholds) -> bool:
    """Whether an engine that drafts with a model has too little room for its requests.

    It preempts requests, or lets them wait while its KV cache is full.
    """
    if engine.speculation is None or not drafts_with_a_model(engine.speculation.method):
        return False
    if not engine.cache.requests >= thresholds.min_requests:
        return False

    is_full = (engine.kv_cache_peak or 0.0) >= thresholds.kv_cache_usage
    waits = waiting_for_room(engine) > 0
    return (is_full and waits) or (engine.cache.preemptions_ratio or 0.0) >= _PREEMPTED


def waiting_for_room(engine: EngineReport) -> float:
    """Requests that wait although vLLM's limit on running ones is not reached.

    It is known as far as the engine tells.
    """
    limit = engine.configuration.max_num_seqs
    running = engine.gauges.get(Gauge.REQUESTS_RUNNING, 0.0)
    if limit is not None and running >= limit:
        return 0.0
    waiting = engine.gauges.get(Gauge.REQUESTS_WAITING, 0.0)
    return engine.gauges.get(Gauge.WAITING_FOR_CAPACITY, waiting)


def _less_than_plain(model: ModelReport) -> float | None:
    """How much smaller an engine's KV cache is than the baseline's; None if unknown.

    It is a share of the baseline's.
    """
    plain = model.plain_cache and model.plain_cache.capacity_tokens
    capacity = model.kv_cache_capacity_tokens
    return 1 - capacity / plain if plain and capacity else None


def _share_of_layers(model: ModelReport) -> float | None:
    """The draft's share of the layers, about its share of the KV cache; None if unknown.

    It is unknown for MTP, since vLLM's draft configuration is then the target's with all of its
    layers.
    """
    engine = next(engine for engine in model.engines if engine.speculation is not None)
    layers, speculation = engine.configuration.layers, engine.speculation
    if speculation is None or is_mtp(speculation.method):
        return None
    drafting = speculation.draft_layers
    return drafting / (layers + drafting) if layers and drafting else None
