"""Which metric name carries which quantity in every vLLM version.

Names are given without vLLM's prefix and, for histograms, without ``_bucket``. The first candidate on the page
is used. Sources: vLLM's ``vllm/v1/metrics/loggers.py`` and ``vllm/engine/metrics.py`` from 0.6 to 0.33, read
from the pages those versions serve (``tests/data/pages``).
"""

from enum import StrEnum

# As vLLM writes them, as Ray Serve LLM rewrites them (with ":" kept or replaced), and as KServe's agent does.
PREFIXES = ("vllm:", "ray_vllm:", "ray_vllm_", "kserve_vllm:")


class Counter(StrEnum):
    """A quantity that only grows while a vLLM process lives."""

    DRAFTS = "drafts"  # verification steps of speculating requests
    DRAFT_TOKENS = "draft_tokens"
    ACCEPTED_TOKENS = "accepted_tokens"
    GENERATION_TOKENS = "generation_tokens"
    PROMPT_TOKENS = "prompt_tokens"
    PREEMPTIONS = "preemptions"
    PREFIX_CACHE_QUERIES = "prefix_cache_queries"  # tokens; blocks before vLLM 0.9
    PREFIX_CACHE_HITS = "prefix_cache_hits"  # the same unit
    STEPS = "steps"  # engine steps; summed over several API servers
    DECODE_SECONDS = "decode_seconds"  # between two output events of a request, summed over requests
    DECODE_STEPS = "decode_steps"  # number of these intervals: one per request and engine step, whatever it accepted
    FIRST_TOKENS = "first_tokens"  # requests whose prefill ended
    TTFT_SECONDS = "ttft_seconds"  # from their arrival until then, summed over them


class Gauge(StrEnum):
    """A quantity at the moment of the poll."""

    REQUESTS_RUNNING = "requests_running"
    REQUESTS_WAITING = "requests_waiting"
    WAITING_FOR_CAPACITY = "waiting_for_capacity"  # requests that a larger engine would run
    KV_CACHE_USAGE = "kv_cache_usage"  # 0 to 1


class Phase(StrEnum):
    """A latency, in seconds, for which vLLM exports a histogram."""

    TTFT = "ttft"  # time to first token
    ITL = "itl"  # between two output events of a request: one per engine step, not one per token
    TPOT = "tpot"  # per output token, one observation per finished request
    E2E = "e2e"  # arrival to last token
    QUEUE = "queue"  # waiting to be scheduled


class Trait(StrEnum):
    """A peculiarity that makes some of an engine's numbers unusable."""

    OVERCOUNTED = "overcounted"  # V0's counters, which add their totals again at every log interval
    DIFFUSION = "diffusion"  # a diffusion model: drafts nothing


# Up to 0.11 vLLM called the time between output events "time per output token".
_ITL = ("inter_token_latency_seconds", "time_per_output_token_seconds")

COUNTERS: dict[Counter, tuple[str, ...]] = {
    Counter.DRAFTS: ("spec_decode_num_drafts_total",),
    Counter.DRAFT_TOKENS: ("spec_decode_num_draft_tokens_total",),
    Counter.ACCEPTED_TOKENS: ("spec_decode_num_accepted_tokens_total",),
    Counter.GENERATION_TOKENS: ("generation_tokens_total",),
    Counter.PROMPT_TOKENS: ("prompt_tokens_total",),
    Counter.PREEMPTIONS: ("num_preemptions_total",),
    Counter.PREFIX_CACHE_QUERIES: ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    Counter.PREFIX_CACHE_HITS: ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
    Counter.STEPS: ("iteration_tokens_total_count",),  # of a histogram, despite its name: one observation per step
    Counter.DECODE_SECONDS: tuple(name + "_sum" for name in _ITL),
    Counter.DECODE_STEPS: tuple(name + "_count" for name in _ITL),
    Counter.FIRST_TOKENS: ("time_to_first_token_seconds_count",),
    Counter.TTFT_SECONDS: ("time_to_first_token_seconds_sum",),
}
ACCEPTED_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
SPECULATION = (Counter.DRAFTS, Counter.DRAFT_TOKENS, Counter.ACCEPTED_TOKENS)

GAUGES: dict[Gauge, tuple[str, ...]] = {
    Gauge.REQUESTS_RUNNING: ("num_requests_running",),
    Gauge.REQUESTS_WAITING: ("num_requests_waiting",),
    Gauge.KV_CACHE_USAGE: ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
}

HISTOGRAMS: dict[Phase, tuple[str, ...]] = {
    Phase.TTFT: ("time_to_first_token_seconds",),
    Phase.ITL: _ITL,
    Phase.TPOT: ("request_time_per_output_token_seconds",),
    Phase.E2E: ("e2e_request_latency_seconds",),
    Phase.QUEUE: ("request_queue_time_seconds",),
}

WAITING_BY_REASON = "num_requests_waiting_by_reason"  # by ``reason``; "deferred" requests wait for something else
CAPACITY = "capacity"
CACHE_CONFIG = "cache_config_info"  # a gauge of 1 whose labels are the settings of the KV cache
DIFFUSION = "diffusion_num_denoising_steps_total"  # replaces spec_decode_* for diffusion models (0.25 on)
PROCESS_START = "process_start_time_seconds"  # no prefix; single-process pages only
CREATED = "generation_tokens_created"  # as well; the same but for a second, where Dynamo leaves out the former


def wanted() -> frozenset[bytes]:
    """The full names of the samples in use, with every prefix; for most histograms, only the buckets."""
    names = {name for candidates in (*COUNTERS.values(), *GAUGES.values()) for name in candidates}
    names |= {f"{name}_bucket" for candidates in HISTOGRAMS.values() for name in candidates}
    names |= {ACCEPTED_PER_POSITION, WAITING_BY_REASON, CACHE_CONFIG, DIFFUSION, CREATED}
    return frozenset({f"{prefix}{name}".encode() for prefix in PREFIXES for name in names} | {PROCESS_START.encode()})


def split(full_name: str) -> tuple[str, str]:
    """A full name as (prefix, rest); the prefix is empty for other programs' names."""
    for prefix in PREFIXES:
        if full_name.startswith(prefix):
            return prefix, full_name[len(prefix) :]
    return "", full_name
