"""vLLM 0.32's metric families: names, types, help texts, labels and bucket edges, in the order of its page.

Held against a recorded page by ``tests/demo``. The ``http_*`` families, which come from FastAPI's instrumentation
and not from vLLM, are left out.
"""

from dataclasses import dataclass
from typing import Literal

from sidecar.demo.generation import FinishReason
from sidecar.demo.options import SimulatorOptions

PHASE_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """One family. ``label`` is the label beside the common ones, with all its values from the start."""

    name: str  # without a counter's _total
    kind: Kind
    help: str
    label: str | None = None
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()  # a histogram's upper bounds, +Inf left out
    engine_label: bool = True


def _counter(name: str, text: str, label: str | None = None, values: tuple[str, ...] = ()) -> FamilySpec:
    return FamilySpec(f"vllm:{name}", "counter", text, label, values)


def _gauge(name: str, text: str, label: str | None = None, values: tuple[str, ...] = ()) -> FamilySpec:
    return FamilySpec(f"vllm:{name}", "gauge", text, label, values)


def _histogram(name: str, text: str, edges: tuple[float, ...]) -> FamilySpec:
    return FamilySpec(f"vllm:{name}", "histogram", text, edges=edges)


def token_edges(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20 ... up to the model's length: how vLLM cuts histograms of request sizes."""
    edges: list[float] = []
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power > max_model_len:
                return tuple(edges)
            edges.append(float(step * power))
        power *= 10


def family_specs(options: SimulatorOptions) -> tuple[FamilySpec, ...]:
    """All families but ``cache_config_info``; without speculation there are no ``spec_decode`` ones."""
    speculation = _speculation(options.num_speculative_tokens) if options.num_speculative_tokens else ()
    return (*speculation, *_counters_and_gauges(), *_histograms(options))


def _speculation(positions: int) -> tuple[FamilySpec, ...]:
    numbers = tuple(str(position) for position in range(positions))
    return (
        _counter("spec_decode_num_drafts", "Number of spec decoding drafts."),
        _counter("spec_decode_num_draft_tokens", "Number of draft tokens."),
        _counter("spec_decode_num_accepted_tokens", "Number of accepted tokens."),
        _counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens per draft position.",
            "position",
            numbers,
        ),
    )


def _counters_and_gauges() -> tuple[FamilySpec, ...]:
    estimated = "for Model Flops Utilization calculations"
    external = "External prefix cache {} from KV connector cross-instance cache sharing, in terms of number of {}."
    return (
        _counter(
            "estimated_flops_per_gpu",
            f"Estimated number of floating point operations per GPU ({estimated}).",
        ),
        _counter(
            "estimated_read_bytes_per_gpu",
            f"Estimated number of bytes read from memory per GPU ({estimated}).",
        ),
        _counter(
            "estimated_write_bytes_per_gpu",
            f"Estimated number of bytes written to memory per GPU ({estimated}).",
        ),
        _gauge("num_requests_running", "Number of requests in model execution batches."),
        _gauge("num_requests_waiting", "Number of requests waiting to be processed."),
        _gauge(
            "num_requests_waiting_by_reason",
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
            "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
            "Sum of all reasons equals vllm:num_requests_waiting.",
            "reason",
            ("capacity", "deferred"),
        ),
        _gauge(
            "engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
            "sleep_state",
            ("awake", "weights_offloaded", "discard_all"),
        ),
        _gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
        _counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."),
        _counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."),
        _counter("external_prefix_cache_queries", external.format("queries", "queried tokens")),
        _counter("external_prefix_cache_hits", external.format("hits", "cached tokens")),
        _counter("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items."),
        _counter("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items."),
        _counter("num_preemptions", "Cumulative number of preemption from the engine."),
        *_token_counters(),
        _counter(
            "request_success",
            "Count of successfully processed requests.",
            "finished_reason",
            tuple(FinishReason),
        ),
        FamilySpec(
            "vllm:admission_rejections",
            "counter",
            "Number of admission attempts rejected by a queue limit, by reason.",
            "reason",
            ("max_num_queued_reqs", "max_num_queued_tokens"),
            engine_label=False,
        ),
    )


def _token_counters() -> tuple[FamilySpec, ...]:
    return (
        _counter("prompt_tokens", "Number of prefill tokens processed."),
        _counter(
            "prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            "source",
            ("local_compute", "local_cache_hit", "external_kv_transfer"),
        ),
        _counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external)."),
        _counter(
            "prompt_tokens_cached_by_source",
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
            "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at "
            "admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
            "source",
            ("device", "host", "p2p", "disk", "external_unspecified"),
        ),
        _counter("generation_tokens", "Number of generation tokens processed."),
    )


def _histograms(options: SimulatorOptions) -> tuple[FamilySpec, ...]:
    tokens = token_edges(options.max_model_len)
    phase = "Histogram of time spent in {} phase for request."
    return (
        _histogram("request_prompt_tokens", "Number of prefill tokens processed.", tokens),
        _histogram("request_generation_tokens", "Number of generation tokens processed.", tokens),
        _histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", STEP_TOKENS),
        _histogram(
            "request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.",
            tokens,
        ),
        _histogram(
            "request_params_n",
            "Histogram of the n request parameter.",
            (1.0, 2.0, 5.0, 10.0, 20.0),
        ),
        _histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.", tokens),
        _histogram(
            "time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            FIRST_TOKEN_SECONDS,
        ),
        _histogram(
            "inter_token_latency_seconds",
            "Histogram of inter-token latency in seconds.",
            TOKEN_SECONDS,
        ),
        _histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            TOKEN_SECONDS,
        ),
        _histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", PHASE_SECONDS),
        _histogram("request_queue_time_seconds", phase.format("WAITING"), PHASE_SECONDS),
        _histogram("request_inference_time_seconds", phase.format("RUNNING"), PHASE_SECONDS),
        _histogram("request_prefill_time_seconds", phase.format("PREFILL"), PHASE_SECONDS),
        _histogram("request_decode_time_seconds", phase.format("DECODE"), PHASE_SECONDS),
        _histogram(
            "request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
        ),
        _histogram(
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            tokens,
        ),
    )


def cache_config_labels(options: SimulatorOptions) -> dict[str, str]:
    """The labels of ``vllm:cache_config_info``; the sizes are the simulator's, the rest is vLLM's default."""
    capacity = options.num_gpu_blocks * options.block_size
    none = (
        *("cache_hit_alignment_tokens", "hash_block_size", "kv_cache_layout", "kv_cache_memory_bytes"),
        *("kv_offloading_size", "mamba_block_size", "mamba_page_size_padded", "num_cpu_blocks"),
        *("num_gpu_blocks_override", "prefix_match_unit", "skip_page_size_padded", "sliding_window"),
    )
    false = (
        *("enable_mamba_shared_prefix_checkpoint", "is_attention_free", "kv_sharing_fast_prefill"),
        *("use_kda_recoverssm", "use_replayssm", "user_specified_block_size"),
    )
    return {
        **dict.fromkeys(none, "None"),
        **dict.fromkeys(false, "False"),
        "_block_size_resolved": "True",
        "block_size": str(options.block_size),
        "cache_dtype": "auto",
        "effective_attention_block_size": str(options.block_size),
        "enable_prefix_caching": "True",
        "engine": options.engine,
        "gpu_memory_utilization": "0.92",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_max_concurrency": str(capacity / options.max_model_len),
        "kv_cache_size_tokens": str(capacity),
        "kv_offloading_backend": "native",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_ssm_cache_dtype": "auto",
        "num_gpu_blocks": str(options.num_gpu_blocks),
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "replayssm_buffer_len": "16",
        "swa_bounded_replay": "True",
    }
