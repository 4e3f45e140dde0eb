"""Which metric name carries which quantity in every vLLM version.

Names are given without vLLM's prefix and, for histograms, without ``_bucket``. The first candidate
on the page is used. Sources: vLLM's ``vllm/v1/metrics/loggers.py`` and ``vllm/engine/metrics.py``
from 0.6 to 0.33, and the pages that those versions serve (``tests/data/pages``).
"""

from enum import StrEnum
from typing import Self

# As vLLM writes them, as Ray Serve LLM rewrites them (with ":" kept or replaced), and as KServe's
# agent does.
PREFIXES = ("vllm:", "ray_vllm:", "ray_vllm_", "kserve_vllm:")

# Up to 0.11 vLLM called the time between output events "time per output token".
_ITL = ("inter_token_latency_seconds", "time_per_output_token_seconds")


class _Quantity(StrEnum):
    """A quantity and its candidates: the names that vLLM's versions give it."""

    candidates: tuple[str, ...]

    def __new__(cls, value: str, *candidates: str) -> Self:
        quantity = str.__new__(cls, value)
        quantity._value_ = value
        quantity.candidates = candidates
        return quantity


class Counter(_Quantity):
    """A quantity that only grows while a vLLM process lives."""

    DRAFTS = "drafts", "spec_decode_num_drafts_total"  # verification steps of speculating requests
    DRAFT_TOKENS = "draft_tokens", "spec_decode_num_draft_tokens_total"
    ACCEPTED_TOKENS = "accepted_tokens", "spec_decode_num_accepted_tokens_total"
    GENERATION_TOKENS = "generation_tokens", "generation_tokens_total"
    PROMPT_TOKENS = "prompt_tokens", "prompt_tokens_total"
    PREEMPTIONS = "preemptions", "num_preemptions_total"
    # In tokens; in blocks before vLLM 0.9.
    PREFIX_CACHE_QUERIES = (
        "prefix_cache_queries",
        "prefix_cache_queries_total",
        "gpu_prefix_cache_queries_total",
    )
    PREFIX_CACHE_HITS = (
        "prefix_cache_hits",
        "prefix_cache_hits_total",
        "gpu_prefix_cache_hits_total",
    )
    # Requests whose prefill ended.
    FIRST_TOKENS = "first_tokens", "time_to_first_token_seconds_count"
    # From their arrival until then, summed over them.
    TTFT_SECONDS = "ttft_seconds", "time_to_first_token_seconds_sum"
    # From being scheduled to the first token, summed over finished requests, and their number.
    PREFILL_SECONDS = "prefill_seconds", "request_prefill_time_seconds_sum"
    PREFILLED = "prefilled", "request_prefill_time_seconds_count"
    # From their arrival until they were scheduled, summed over the same requests.
    QUEUE_SECONDS = "queue_seconds", "request_queue_time_seconds_sum"


class Gauge(_Quantity):
    """A quantity at the moment of the poll."""

    REQUESTS_RUNNING = "requests_running", "num_requests_running"
    REQUESTS_WAITING = "requests_waiting", "num_requests_waiting"
    # Requests that a larger engine would run; see WAITING_BY_REASON.
    WAITING_FOR_CAPACITY = "waiting_for_capacity"
    AWAKE = "awake"  # 1, or 0 while vLLM sleeps; see SLEEP_STATE
    KV_CACHE_USAGE = "kv_cache_usage", "kv_cache_usage_perc", "gpu_cache_usage_perc"  # 0 to 1


class Phase(_Quantity):
    """A latency, in seconds, for which vLLM exports a histogram."""

    TTFT = "ttft", "time_to_first_token_seconds"
    # Between two output events of a request: one per engine step, not one per token.
    ITL = "itl", *_ITL
    # Per output token, one observation per finished request.
    TPOT = "tpot", "request_time_per_output_token_seconds"
    E2E = "e2e", "e2e_request_latency_seconds"  # arrival to last token
    QUEUE = "queue", "request_queue_time_seconds"  # waiting to be scheduled


class Trait(StrEnum):
    """A peculiarity that makes some of an engine's numbers unusable."""

    OVERCOUNTED = "overcounted"  # V0's counters, which add their totals again at every log interval
    DIFFUSION = "diffusion"  # a diffusion model: drafts nothing
    # vLLM's Rust frontend serves the page: without a start time, with the time between two tokens
    # late, and with the counters of drafts whether vLLM speculates or not.
    RUST_FRONTEND = "rust_frontend"


SPECULATION = (Counter.DRAFTS, Counter.DRAFT_TOKENS, Counter.ACCEPTED_TOKENS)
ACCEPTED_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
# By ``reason``; "deferred" requests wait for something else.
WAITING_BY_REASON = "num_requests_waiting_by_reason"
CAPACITY = "capacity"
SLEEP_STATE = "engine_sleep_state"  # by ``sleep_state``, one of which is 1 (0.11 on)
AWAKE = "awake"
CACHE_CONFIG = "cache_config_info"  # a gauge of 1 whose labels are the settings of the KV cache
# Replaces spec_decode_* for diffusion models (0.25 on).
DIFFUSION = "diffusion_num_denoising_steps_total"
# Without a prefix; on single-process pages only.
PROCESS_START = "process_start_time_seconds"
# On single-process pages only, too: within a second of PROCESS_START, which Dynamo leaves out.
CREATED = "generation_tokens_created"
# From our plug-in, without a prefix: a gauge of 1 whose label ``id`` is the server's id.
SERVER = "specdec_server_info"


def wanted() -> frozenset[bytes]:
    """The full names of the samples in use, with every prefix.

    Of most histograms only the buckets are used.
    """
    names = {name for quantity in (*Counter, *Gauge) for name in quantity.candidates}
    names |= {f"{name}_bucket" for phase in Phase for name in phase.candidates}
    names |= {
        ACCEPTED_PER_POSITION,
        WAITING_BY_REASON,
        SLEEP_STATE,
        CACHE_CONFIG,
        DIFFUSION,
        CREATED,
    }

    return frozenset(
        {f"{prefix}{name}".encode() for prefix in PREFIXES for name in names}
        | {PROCESS_START.encode(), SERVER.encode()}
    )


def split(full_name: str) -> tuple[str, str]:
    """A full name as (prefix, rest); the prefix is empty for other programs' names."""
    for prefix in PREFIXES:
        if full_name.startswith(prefix):
            return prefix, full_name[len(prefix) :]
    return "", full_name


def is_collected(prefix: str) -> bool:
    """Whether the page is that of a Ray node's agent, not of vLLM's own process.

    Its start time is then the agent's.
    """
    return prefix.startswith("ray_")
