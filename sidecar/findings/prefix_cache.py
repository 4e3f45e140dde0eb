"""``prefix_cache``: vLLM computes the last block of each prefix-cache hit again for the draft."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.engine.cache import sum_caches
from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.engine.methods import drops_last_block
from sidecar.findings.explanation import Explanation, speculation_of
from sidecar.findings.finding import Finding
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.paste import changed_config, given_option, verification
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds
from sidecar.wording.numbers import percent

_CODE: Final = "prefix_cache"
_DROPPED: Final = 0.05  # share of the prompt tokens from which on dropped blocks matter


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache(Finding):
    """The share of the prompt tokens that is found, and what it would be at most, 0 to 1."""

    code: str = field(default=_CODE, init=False)
    hit_ratio: float
    hit_ratio_at_most: float
    block_tokens: int


def prefix_cache(model: ModelReport, thresholds: Thresholds) -> Iterator[PrefixCache]:
    """The finding, if the dropped blocks are a large part of what requests look up.

    How many requests hit is not known: at most all, and no more than blocks were found. A hit of
    one block is lost.
    """
    engines = [engine for engine in model.engines if _drops(engine)]
    cache = sum_caches(engine.cache for engine in engines)
    ratio = cache.hit_ratio
    if ratio is None or cache.requests < thresholds.min_requests:
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


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------

_HASHES: Final = "disable_lookahead_block_hashes"
_KEEP: Final = (
    'Try `"disable_eagle_block_drop": true` in --speculative-config on one pod, and compare.'
)
_HASH: Final = f"Remove `{_HASHES}` from --speculative-config on one pod, and compare."
_CANNOT_KEEP: Final = "Upgrade to vLLM 0.33, which keeps the block, or make shared prefixes longer."


def _prefix_cache(finding: PrefixCache, model: ModelReport) -> Explanation:
    speculation = speculation_of(model)
    remedy, config = _keep_block(speculation)
    method = speculation.method or "an unknown method"

    return Explanation(
        code=finding.code,
        what=(
            f"{percent(finding.hit_ratio)} of the prompt tokens are found in the prefix cache. Up"
            f" to {percent(finding.hit_ratio_at_most)} could be: with method {method}, vLLM"
            f" recomputes the last block of each hit, here {finding.block_tokens:,} tokens."
        ),
        remedy=remedy,
        expect=(
            "TTFT falls where prompts are shared; TPOT may rise with it or fall. vLLM calls"
            " `disable_eagle_block_drop` experimental: without the block the draft head lacks its"
            " own states, so it may accept less."
        ),
        verify=verification(model),
        config=config,
    )


def _keep_block(speculation: Speculation) -> tuple[str, str]:
    """The remedy, and the configuration with it."""
    if given_option(speculation, _HASHES):
        return _HASH, changed_config(speculation, **{_HASHES: None})
    if speculation.keeps_last_block is None:
        return _CANNOT_KEEP, ""
    return _KEEP, changed_config(speculation, disable_eagle_block_drop=True)


PREFIX_CACHE: Final = FindingKind(
    code=_CODE,
    gate=prefix_cache,
    place=Place.COSTS_NO_STEP,
    explain=_prefix_cache,
    why="vLLM recomputes a block of each prefix hit",
    remedy="try disable_eagle_block_drop",
    runbook="SpecDecodeSlowerThanPlain",
)
