"""Findings on the prefix cache and on the room in the KV cache, in words."""

from collections.abc import Sequence
from math import isnan
from typing import Final

from sidecar.analysis.engine.cache import sum_caches
from sidecar.analysis.findings.prefix_cache import PrefixCache
from sidecar.analysis.findings.room import Room, waiting_for_room
from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.requests.messages import Speculation
from sidecar.wording.findings.explanation import Explanation, Words, speculation_of
from sidecar.wording.findings.paste import changed_config, given_option, verification
from sidecar.wording.numbers import count, counted, percent

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
            "Time to first token falls where prompts are shared; the time per token may rise with"
            " it or fall. vLLM calls `disable_eagle_block_drop` experimental: without the block the"
            " draft head lacks its own states, so it may accept less."
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


PREFIX_CACHE: Final = Words(
    kind=PrefixCache,
    explain=_prefix_cache,
    why="vLLM recomputes a block of each prefix hit",
    remedy="try disable_eagle_block_drop",
    runbook="SpecDecodeSlowerThanPlain",
)


def _room(finding: Room, model: ModelReport) -> Explanation:
    pressed = [engine for engine in model.engines if engine.key.engine in finding.engines]

    return Explanation(
        code=finding.code,
        what=(
            f"Engine {', '.join(finding.engines)} runs out of KV cache: {_pressure(pressed)}."
            f" {_taken(finding)}"
        ),
        remedy=(
            "Raise --gpu-memory-utilization if memory is left, use a smaller draft or method, or"
            " add pods. To find out whether requests gain more from the draft than from the room,"
            " compare without it at this load."
        ),
        expect=(
            "A preempted request is computed again, and its client waits for that; no acceptance"
            " rate shows it."
        ),
        verify=verification(model),
    )


def _taken(finding: Room) -> str:
    if finding.less_than_plain is not None:
        smaller = f"It is {percent(finding.less_than_plain)} smaller than the baseline's"
        fits = finding.fitting
        if fits is None:
            return f"{smaller}."
        return (
            f"{smaller}: {counted(fits.requests, 'request')} of {count(fits.tokens)} tokens, their"
            f" mean, fit at once; without speculation {count(fits.plain)} would."
        )
    share = percent(finding.share_of_layers or 0.0)
    return f"The draft takes about {share} of it, by its share of the layers."


def _pressure(engines: Sequence[EngineReport]) -> str:
    preempted = sum_caches(engine.cache for engine in engines).preemptions
    waiting = sum(waiting_for_room(engine) for engine in engines)
    seen = [] if isnan(preempted) else [f"{counted(preempted, 'preemption')} in the window"]
    return ", ".join([*seen, f"{counted(waiting, 'request')} waiting for room"])


ROOM: Final = Words(
    kind=Room,
    explain=_room,
    why="the draft takes KV cache that requests need",
    remedy="more GPU memory, or a smaller draft",
    runbook="SpecDecodeKVCachePressure",
)

WORDS: Final = (PREFIX_CACHE, ROOM)
