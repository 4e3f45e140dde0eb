"""Options of the simulated vLLM."""

from dataclasses import dataclass

from sidecar.errors import SettingsError


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """How the simulated vLLM behaves; the defaults are a small model with a draft model.

    Raises:
        SettingsError: a value is outside its range, or one full-length request would not fit the KV cache.
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
    max_num_batched_tokens: int = 2048  # prompt and generated tokens computed in one step, at most
    max_model_len: int = 8192  # tokens of prompt and completion together
    block_size: int = 16  # tokens per KV-cache block
    num_gpu_blocks: int = 4096  # KV-cache blocks

    step_seconds: float = 0.014  # an empty engine step
    step_seconds_per_request: float = 0.0002  # added for every running request
    prefill_seconds_per_token: float = 0.00002  # added for every prompt token computed
    draft_seconds_per_token: float = (
        0.0  # added for every draft token of a request, since they are drafted one after the other
    )

    max_body_bytes: int = 4 * 1024 * 1024  # a larger request gets 413
    max_choices: int = 128  # n times the number of prompts; more gets 400

    def __post_init__(self) -> None:
        above_0 = ("speed", "hot_temperature", "mean_tokens_to_eos", "max_num_seqs", "max_model_len", "block_size")
        faults = [f"{name}: must be above 0" for name in above_0 if getattr(self, name) <= 0]
        shares = ("cold_acceptance", "hot_acceptance")
        faults += [f"{name}: must be from 0 to 1" for name in shares if not 0 <= getattr(self, name) <= 1]
        if self.num_speculative_tokens < 0:
            faults.append("num_speculative_tokens: must be 0 or more")
        if self.max_num_batched_tokens < self.max_num_seqs * (self.num_speculative_tokens + 1):
            faults.append("max_num_batched_tokens: must hold one verification step of max_num_seqs requests")
        if self.num_gpu_blocks * self.block_size < self.max_model_len + self.num_speculative_tokens + 1:
            faults.append("num_gpu_blocks: one request of max_model_len tokens must fit, so use more blocks")
        if faults:
            raise SettingsError(faults)
