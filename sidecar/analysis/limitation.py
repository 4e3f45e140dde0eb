"""What an engine's page does not export, and how to change that."""

from enum import StrEnum
from typing import Final

from sidecar.engine.names import Counter, Phase, Trait
from sidecar.engine.snapshot import EngineSnapshot


class Limitation(StrEnum):
    """The label value of ``specdec_engine_limitation``; ``EXPLANATIONS`` are for people."""

    V0_COUNTERS = "v0_counters"
    NO_SPECULATION = "no_speculation"
    DIFFUSION = "diffusion"
    NO_REQUEST_TPOT = "no_request_tpot"
    NO_POSITIONS = "no_positions"
    NO_KV_CACHE_CAPACITY = "no_kv_cache_capacity"
    SEVERAL_PROCESSES = "several_processes"
    ITL_PER_TOKEN = "itl_per_token"  # noqa: S105 - not a password


EXPLANATIONS: Final = {
    Limitation.V0_COUNTERS: (
        "vLLM's V0 engine adds its totals to its speculation counters again every 5 s, so the sidecar does not export "
        "them and has no acceptance rate. Use the V1 engine: vLLM 0.11 or later, or VLLM_USE_V1=1."
    ),
    Limitation.NO_SPECULATION: (
        "vLLM exports no spec_decode counters: it runs without --speculative-config, or with --disable-log-stats."
    ),
    Limitation.DIFFUSION: "A diffusion model does not draft, so it has no acceptance rate.",
    Limitation.NO_REQUEST_TPOT: (
        "vLLM before 0.11 does not export the time per output token. Its inter-token latency has one observation per "
        "engine step and may rise as the acceptance rate improves."
    ),
    Limitation.NO_POSITIONS: "This vLLM does not export accepted tokens by draft position. Upgrade vLLM.",
    Limitation.NO_KV_CACHE_CAPACITY: (
        "This vLLM does not export the capacity of the KV cache. Upgrade vLLM: all tested versions from 0.10 on do."
    ),
    Limitation.SEVERAL_PROCESSES: (
        "vLLM's /metrics is the sum of several API servers: it has no step count, and a restart shows only if a "
        "counter decreases. If one API server is enough, set --api-server-count 1."
    ),
    Limitation.ITL_PER_TOKEN: (
        "This vLLM's inter-token latency has one observation per token, not one per engine step, so it does not show "
        "how long a step takes. With the plug-in, step times come from the engine; without it there is no speedup."
    ),
}


def limitations(
    engine: EngineSnapshot, *, several_processes: bool, itl_per_token: bool = False
) -> frozenset[Limitation]:
    """The limitations of one engine, according to its last page."""
    found = {
        Limitation.V0_COUNTERS: Trait.OVERCOUNTED in engine.traits,
        Limitation.DIFFUSION: Trait.DIFFUSION in engine.traits,
        Limitation.NO_SPECULATION: not engine.traits and Counter.DRAFT_TOKENS not in engine.counters,
        Limitation.NO_POSITIONS: Counter.DRAFTS in engine.counters and not engine.accepted_per_position,
        Limitation.NO_REQUEST_TPOT: Phase.TPOT not in engine.histograms,
        Limitation.NO_KV_CACHE_CAPACITY: engine.kv_cache_capacity_tokens is None,
        Limitation.SEVERAL_PROCESSES: several_processes,
        Limitation.ITL_PER_TOKEN: itl_per_token,
    }
    return frozenset(limitation for limitation, holds in found.items() if holds)
