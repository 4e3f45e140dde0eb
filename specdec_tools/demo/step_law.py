"""Laws of how long an engine step takes, by what it computes.

With a known law the right speedup is known, too: docs/measurements/speedup.md compares the
sidecar's with it.
"""

from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one engine step computes.

    ``decodes`` requests decode, with ``drafted`` draft tokens each, and hold ``context_tokens``
    together. ``prefill_tokens`` tokens of prompts are computed, and each attends to
    ``prefill_context`` tokens on average.
    """

    decodes: int
    context_tokens: int
    drafted: int = 0
    prefill_tokens: int = 0
    prefill_context: float = 0.0


class StepLaw(Protocol):
    """Gives a step's seconds."""

    def seconds(self, work: StepWork) -> float:
        """The step's duration."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLaw:
    """A CPU: everything is computed one after the other, so all times add up.

    Drafting is sequential, and each token that is verified attends to the whole context.
    """

    step: float
    per_request: float
    per_context_token: float = 0.0
    per_prefill_token: float = 0.0
    per_draft_position: float = 0.0
    per_verified_token: float = 0.0

    def seconds(self, work: StepWork) -> float:
        """The step's duration."""
        verified = work.decodes * work.drafted
        drafting = self.per_draft_position * work.drafted if work.decodes else 0.0

        return (
            self.step
            + self.per_request * work.decodes
            + self.per_context_token * work.context_tokens * (1 + work.drafted)
            + self.per_prefill_token * work.prefill_tokens
            + drafting
            + self.per_verified_token * verified
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineLaw:
    """A GPU: its weights are read while it computes, whichever takes longer.

    Attention follows: it reads the KV cache of the requests that decode, and computes that of
    prompts. Each draft position is a pass of a smaller model of the same kind.
    """

    overhead: float  # seconds of a step besides
    weights_bytes: float
    kv_bytes_per_token: float
    flops_per_token: float
    attention_flops: float  # of one prompt token for each token that it attends to
    bytes_per_second: float
    flops_per_second: float
    draft_share: float  # of the weights and the computation, for one draft position
    draft_overhead: float  # seconds of a draft position besides
    draft_kv_share: float  # of the KV cache

    def seconds(self, work: StepWork) -> float:
        """The step's duration."""
        tokens = work.decodes * (1 + work.drafted) + work.prefill_tokens
        weights = self.weights_bytes / self.bytes_per_second
        computing = tokens * self.flops_per_token / self.flops_per_second
        reading = work.context_tokens * self.kv_bytes_per_token / self.bytes_per_second
        attended = work.prefill_tokens * work.prefill_context
        attention = attended * self.attention_flops / self.flops_per_second

        target = self.overhead + max(weights, computing) + reading + attention
        return target + self._drafting(work, weights, reading)

    def _drafting(self, work: StepWork, weights: float, reading: float) -> float:
        """The draft's passes; its first one also takes in the prompts."""
        if not work.drafted:
            return 0.0
        per_token = self.draft_share * self.flops_per_token / self.flops_per_second
        prompts = work.prefill_tokens * per_token
        if not work.decodes:
            return prompts
        computing = work.decodes * per_token
        each = max(self.draft_share * weights, computing) + self.draft_kv_share * reading
        return work.drafted * (self.draft_overhead + each) + prompts


# The lab's target-large on a CPU, fitted by hand: plain steps of 17, 21 and 28 ms with 1, 4 and 8
# requests of 20 tokens, 36 and 53 ms with 4 and 8 of 1,900.
LAB: Final = LinearLaw(
    step=0.0145,
    per_request=0.0017,
    per_context_token=1.7e-6,
    per_prefill_token=0.0003,
    per_draft_position=0.001,
    per_verified_token=0.0015,
)

# An 8B model with grouped-query attention (32 layers, 8 KV heads of 128, BF16) on an H100 SXM: 3.35
# TB/s, of which 80 % are reached, and 989 TFLOP/s, of which 60 % are. Plain decoding of one request
# takes 6.8 ms by it; vLLM issue 20780 measured 7.07. An EAGLE-3 head has about 0.4 billion
# parameters, and there K = 3 took 11.4 ms a step.
H100: Final = RooflineLaw(
    overhead=0.0008,
    weights_bytes=16.06e9,
    kv_bytes_per_token=131_072,
    flops_per_token=16.06e9,
    attention_flops=524_288,
    bytes_per_second=2.68e12,
    flops_per_second=5.93e14,
    draft_share=0.05,
    draft_overhead=0.0011,
    draft_kv_share=1 / 32,
)
