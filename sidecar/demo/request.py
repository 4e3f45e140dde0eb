"""One sequence that the simulated engine generates, with the attributes of vLLM's ``Request``."""

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random


class RequestStatus(StrEnum):
    """The states of vLLM's requests that occur here; the values are those of its label ``finished_reason``."""

    RUNNING = ""  # or waiting
    FINISHED_LENGTH_CAPPED = "length"
    FINISHED_ABORTED = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The parameters that steer generation; ``temperature`` is the effective one."""

    temperature: float
    max_tokens: int


@dataclass(eq=False)  # no slots: the plug-in adds an attribute of its own
class Request:
    """``arrival_time`` is in Unix seconds, the other times are the engine's."""

    request_id: str
    sampling_params: SamplingParams
    num_prompt_tokens: int
    arrival_time: float
    random: Random
    use_structured_output: bool = False
    lora_request: None = None
    status: RequestStatus = RequestStatus.RUNNING
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    num_output_tokens: int = 0
    arrived: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    lengths: list[int] = field(default_factory=list)  # [j]: verification steps that accepted j tokens

    @property
    def time_per_output_token(self) -> float:
        """Seconds per token after the first; 0 for a request of one token, as in vLLM."""
        return (self.last_token - self.first_token) / max(self.num_output_tokens - 1, 1)
