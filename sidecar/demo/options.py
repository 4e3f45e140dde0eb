"""Options of the simulated vLLM."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """How the simulated vLLM behaves; the defaults are a small model with a draft model.

    One request of ``max_model_len`` tokens fits the KV cache.
    """

    model_name: str = "demo"  # the only name that requests may ask for
    engine: str = "0"  # the value of the `engine` label
    seed: int = 0  # the same seed and the same order of requests give the same tokens
    speed: float = 1.0  # factor on engine speed; above about 10 the event loop is the limit

    num_speculative_tokens: int = 3  # draft tokens per verification step; 0: no speculation
    exact: bool = True  # like --per-request-spec-decode-metrics summary
    force_include_usage: bool = True  # like --enable-force-include-usage
    default_temperature: float = 1.0  # for requests without one, as in the model's generation_config
    cold_acceptance: float = 0.95  # accepted / drafted at temperature 0 (0-1)
    hot_acceptance: float = 0.35  # the same from hot_temperature on (0-1); linear between the two
    hot_temperature: float = 1.2  # with these defaults acceptance crosses 0.5 at temperature 0.9
    mean_tokens_to_eos: int = 200  # mean length of a request without ignore_eos

    max_num_seqs: int = 16  # requests that run at once
    max_model_len: int = 8192  # tokens of prompt and completion together
    block_size: int = 16  # tokens per KV-cache block
    num_gpu_blocks: int = 4096  # KV-cache blocks

    step_seconds: float = 0.014  # an empty engine step
    step_seconds_per_request: float = 0.0002  # added for every running request
    prefill_seconds_per_token: float = 0.00002  # added for every prompt token computed
    draft_seconds_per_token: float = 0.0  # added for each draft position, as they are drafted one after the other

    max_body_bytes: int = 4 * 1024 * 1024  # a larger request gets 413
    max_choices: int = 128  # n times the number of prompts; more gets 400
