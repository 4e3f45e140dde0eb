"""What can't be known of an engine from its own page, and what would change that."""

from enum import StrEnum

from sidecar.engine.names import Counter, Gauge, Phase, Trait
from sidecar.engine.snapshot import EngineSnapshot


class Limitation(StrEnum):
    """The label value of ``specdec_engine_limitation``; ``EXPLANATIONS`` tells a person."""

    V0_COUNTERS = "v0_counters"
    NO_SPECULATION = "no_speculation"
    DIFFUSION = "diffusion"
    NO_REQUEST_TPOT = "no_request_tpot"
    NO_POSITIONS = "no_positions"
    NO_KV_CACHE_CAPACITY = "no_kv_cache_capacity"
    NO_KV_CACHE_USAGE = "no_kv_cache_usage"
    SEVERAL_PROCESSES = "several_processes"


EXPLANATIONS = {
    Limitation.V0_COUNTERS: (
        "vLLM's V0 engine adds its totals again every 5 s, so its speculation counters are not exported and no "
        "acceptance over time is computed; its own lifetime average is shown as it is. Use the V1 engine: vLLM 0.11 or "
        "later, or VLLM_USE_V1=1."
    ),
    Limitation.NO_SPECULATION: (
        "No spec_decode counters: vLLM runs without --speculative-config, or with --disable-log-stats."
    ),
    Limitation.DIFFUSION: "A diffusion model drafts nothing: there is no acceptance to watch.",
    Limitation.NO_REQUEST_TPOT: (
        "No time per output token of requests before vLLM 0.11; the ITL histogram is per engine step, which better "
        "acceptance can raise."
    ),
    Limitation.NO_POSITIONS: "No accepted tokens by draft position.",
    Limitation.NO_KV_CACHE_CAPACITY: "vLLM does not tell how many tokens the KV cache holds.",
    Limitation.NO_KV_CACHE_USAGE: "vLLM does not tell how full the KV cache is.",
    Limitation.SEVERAL_PROCESSES: (
        "Several API servers share the page: their step counts are a sum, and a restart shows only where a counter "
        "falls."
    ),
}


def limitations(engine: EngineSnapshot, *, several_processes: bool) -> frozenset[Limitation]:
    """What holds for one engine, as far as its last page tells."""
    found = {
        Limitation.V0_COUNTERS: Trait.OVERCOUNTED in engine.traits,
        Limitation.DIFFUSION: Trait.DIFFUSION in engine.traits,
        Limitation.NO_SPECULATION: not engine.traits and Counter.DRAFT_TOKENS not in engine.counters,
        Limitation.NO_POSITIONS: Counter.DRAFTS in engine.counters and not engine.accepted_per_position,
        Limitation.NO_REQUEST_TPOT: Phase.TPOT not in engine.histograms,
        Limitation.NO_KV_CACHE_CAPACITY: engine.kv_cache_capacity_tokens is None,
        Limitation.NO_KV_CACHE_USAGE: Gauge.KV_CACHE_USAGE not in engine.gauges,
        Limitation.SEVERAL_PROCESSES: several_processes,
    }
    return frozenset(limitation for limitation, holds in found.items() if holds)
