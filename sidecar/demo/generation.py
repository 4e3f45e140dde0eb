"""One sequence that the simulated engine generates, and what an engine step reports."""

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random


class FinishReason(StrEnum):
    """vLLM's label values of ``finished_reason``, in the order of its page."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine sees it: its length in tokens and the hashes of its full blocks."""

    tokens: int
    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """The request's parameters that steer generation; ``temperature`` is the effective one."""

    temperature: float
    max_tokens: int
    ignore_eos: bool


@dataclass(slots=True, eq=False)
class Generation:
    """One choice of one request inside the engine. Times are the injected clock's seconds."""

    prompt: Prompt
    sampling: Sampling
    index: int
    random: Random
    position_probability: float
    eos_probability: float
    arrival: float
    scheduled: float = 0.0  # admitted
    first_token: float = 0.0
    last_token: float = 0.0
    output_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens found in the prefix cache
    shared_blocks: int = 0
    private_blocks: int = 0
    finished: FinishReason | None = None
    drafts: int = 0
    accepted_tokens: int = 0
    histogram: list[int] = field(default_factory=list)  # [j]: verification steps that accepted j tokens

    @property
    def total_tokens(self) -> int:
        """Tokens of prompt and output."""
        return self.prompt.tokens + self.output_tokens

    @property
    def time_per_output_token(self) -> float:
        """Seconds per token after the first; 0 for a request of one token, as in vLLM."""
        return (self.last_token - self.first_token) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's gauges."""

    running: int
    waiting: int
    kv_usage: float  # 0-1


@dataclass(slots=True)
class StepReport:
    """What one engine step adds to the metrics."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens
    prefix_hits: int = 0  # tokens
    drafts: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    first_token_seconds: list[float] = field(default_factory=list)
    inter_token_seconds: list[float] = field(default_factory=list)
    finished: list[Generation] = field(default_factory=list)
    outputs: list[tuple[Generation, int]] = field(default_factory=list)  # with the number of new tokens
