"""``prefix_cache``: vLLM computes the last block of each prefix-cache hit again for the draft."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.engine.cache import sum_caches
from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation
from sidecar.analysis.report import EngineReport
from sidecar.engine.methods import drops_last_block

_DROPPED: Final = 0.05  # share of the prompt tokens from which on dropped blocks matter


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache(Finding):
    """The share of the prompt tokens that is found, and what it would be at most, 0 to 1."""

    code: ClassVar[str] = "prefix_cache"
    hit_ratio: float
    hit_ratio_at_most: float
    block_tokens: int


def prefix_cache(situation: Situation) -> Iterator[PrefixCache]:
    """The finding, if the dropped blocks are a large part of what requests look up.

    How many requests hit is not known: at most all, and no more than blocks were found. A hit of
    one block is lost.
    """
    engines = [engine for engine in situation.model.engines if _drops(engine)]
    cache = sum_caches(engine.cache for engine in engines)
    ratio = cache.hit_ratio
    if ratio is None or cache.requests < situation.thresholds.min_requests:
        return

    last_blocks = sum(engine.cache.requests * engine.kv_cache_block_tokens for engine in engines)
    dropped = min(last_blocks / cache.queries, ratio, 1 - ratio)
    if dropped < _DROPPED:
        return

    yield PrefixCache(
        hit_ratio=ratio,
        hit_ratio_at_most=ratio + dropped,
        block_tokens=max(engine.kv_cache_block_tokens for engine in engines),
    )


def _drops(engine: EngineReport) -> bool:
    """Whether the engine drops the blocks: as it says itself, else as vLLM before 0.32 does.

    Later ones hash a block together with the next token, so that the method alone does not tell.
    """
    speculation = engine.speculation
    configuration = engine.configuration
    if speculation is None or configuration.prefix_caching is False:
        return False
    if configuration.drops_cache_block is not None:
        return configuration.drops_cache_block

    is_before_032 = speculation.keeps_last_block is None  # it has no option to keep the block
    return is_before_032 and drops_last_block(speculation.method)


RULES: Final = (FindingRule(kind=PrefixCache, gate=prefix_cache, place=Place.COSTS_NO_STEP),)
