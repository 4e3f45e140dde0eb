"""Options of the simulated vLLM."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """How the simulated vLLM behaves; by default like a small model with a draft model."""

    model_name: str = "demo"
    engine: str = "0"  # the value of the `engine` label
    speed: float = 1.0  # factor on engine speed; above about 10 the event loop is the limit

    num_speculative_tokens: int = 3  # draft tokens per verification step; 0: no speculation
    cold_acceptance: float = 0.975  # probability at temperature 0 that a draft token is accepted if all before it were
    hot_acceptance: float = 0.56  # the same from hot_temperature on; linear between the two
    hot_temperature: float = 1.2  # with these defaults 95 % of the draft tokens are accepted at 0, 35 % at 1.2
    draft_sample_method: str = "greedy"  # what the plug-in reads; hot_acceptance does not follow from it
    structured_acceptance: float = 1.0  # factor on that probability for structured output
    prefix_hits: float = 0.25  # share of requests that find half of their prompt in the prefix cache (0-1)

    max_num_seqs: int = 16  # requests that run concurrently
    block_size: int = 16  # tokens per KV-cache block
    num_gpu_blocks: int = 4096  # KV-cache blocks

    step_seconds: float = 0.014  # an empty engine step
    step_seconds_per_request: float = 0.0002  # added for every running request
    prefill_seconds_per_token: float = 0.00002  # added for every prompt token computed
    draft_seconds_per_token: float = 0.0  # added for each draft position, since drafting is sequential
